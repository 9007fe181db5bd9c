"""Types, programs, graphs: frozen, printable, without torch."""
