"""The token machine: rows in, schedule out. No torch."""
