"""The token machine in native code: the same firings and the same schedule, for graphs of integers.

Plain `penstock.plan.machine` says what is planned; this folder does it faster. `assemble` turns a
linked graph into a flat program, `kernel` carries that out, `machine` stands in for the machine;
`host_launches` plans what mixes along dynamic dimensions, with the plain machine's own code.
What it cannot do (reads, random keys, floats on the host, for-each, faults) is left to the plain
one.
"""
