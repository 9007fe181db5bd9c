"""Speed claims, one script each, run as `penstock bench NAME`."""
