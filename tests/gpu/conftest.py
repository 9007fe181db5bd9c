"""Keeps the doctest collector from importing what is meant to run in processes of its own."""

collect_ignore = ["scripts"]
