"""Data that recursive programs run on: one tree as arrays, made-up trees of given shapes, readers.

Everything here is per example. Columns for `map` are plain lists of these. Each kind of file has a
module: `conllu`, `listops`, `penn`, `sick`; what is wrong in a file is refused with file, line and
reason.
"""

from penstock.data import conllu, listops, penn, sick
from penstock.data.made_up import (
    chains,
    combs,
    perfect_trees,
    random_binary_trees,
    random_trees,
)
from penstock.data.nodes import Node
from penstock.data.tree import Tree

__all__ = [
    "Node",
    "Tree",
    "chains",
    "combs",
    "conllu",
    "listops",
    "penn",
    "perfect_trees",
    "random_binary_trees",
    "random_trees",
    "sick",
]
