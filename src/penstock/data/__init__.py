"""Data that recursive programs run on: one tree as arrays, and made-up trees of given shapes.

Everything here is per example. Columns for `map` are plain lists of these.
"""

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
    "perfect_trees",
    "random_binary_trees",
    "random_trees",
]
