"""Arenas, blocks, launches."""
