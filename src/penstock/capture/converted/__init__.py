"""What converted functions call: Python's own control flow, unless a traced value decides."""
