"""Other systems at the same work: each optional, in its own environment, a process of its own.

`install` makes the environments, `process` starts what is there and times it in the rounds of a
comparison. The other modules run inside those environments and import numpy and their system only,
never torch or Penstock.
"""
