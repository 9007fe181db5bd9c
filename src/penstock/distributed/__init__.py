"""Several processes: every rank plans alike, runs its own launches, and exchanges rows."""
