"""Formats what was recorded."""
