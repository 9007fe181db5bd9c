"""Unchanged eager code: its calls are recorded, and run batched."""
