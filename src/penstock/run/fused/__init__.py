"""Launches compiled whole: operands are gathered, the block is computed and its results are written
by a few kernels instead of one for each operation.

The plain way stays the reference: a compiled launch is checked against it when it is built, and is
used where it is faster. Without a compiler everything runs the plain way.
"""
