"""Row-wise loops as native code: printed as Python, compiled by Numba, run for all rows at once.

In the order of the path: `scalars` takes a closed loop apart into operations on scalars, `printing`
and `adjoint` write them down as Python, `kernels` and `training` make whole functions of that,
`compiling` has Numba compile them, and `block` is what a launch calls. On CUDA devices the path is
the same with files of their own: `triton_printing`, `triton_kernels`, `triton_compiling`,
`triton_launching` and `device_block`. Loops of any torch calls on such devices are in `whole_block`
and `while_nodes`.
"""
