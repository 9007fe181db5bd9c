"""Row-wise loops as native code: printed as Python, compiled by Numba, run for all rows at once.

In the order of the path: `scalars` takes a closed loop apart into operations on scalars, `printing`
and `adjoint` write them down as Python, `kernels` makes whole functions of that, `compiling` has
Numba compile them, and `block` is what a launch calls. Another kind of device takes the same path
with another printer.
"""
