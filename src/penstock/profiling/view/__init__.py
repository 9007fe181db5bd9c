"""Draws programs, graphs and profiles on one page that needs no network."""
