"""Passes over Python's `ast`: from a function's source to one whose control flow is calls."""
