"""Launches that one call of C++ code does, without Python in between.

What Inductor has generated for a launch is read into numbers (`code.py`), which a small interpreter
carries out (`code.hpp`). The interpreter is compiled on the user's machine (`library.py`). Code
that is not understood as a whole is left to Python: nothing is guessed.
"""
