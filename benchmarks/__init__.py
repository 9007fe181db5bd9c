"""Speed claims, one script each, run as `python -m benchmarks.NAME`."""
