"""How many programs contain conditionals and loops: `penstock stats`."""
