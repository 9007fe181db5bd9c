"""Keeps the doctest collector from importing the table a second time."""

collect_ignore = ["programs", "agreement.py", "table.py", "ways.py"]
