"""The token machine in native code: the same firings and the same schedule, for graphs of integers.

Plain `penstock.plan.machine` says what is planned; this folder does it faster. `assemble` turns a
linked graph into a flat program, `kernel` carries that out, `machine` stands in for the machine.
What it cannot do (arrays, reads, random keys, floats on the host, faults) is left to the plain one.
"""
