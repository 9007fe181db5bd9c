"""Python becomes a program."""
