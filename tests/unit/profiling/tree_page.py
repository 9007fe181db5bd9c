"""A page of a small recursion over trees and a loop, with what must be on it."""

import json
import re

import torch

import penstock as ps

table = torch.ones(4, 20)


@ps.function
def total(tree, i):
    if tree.is_leaf(i):
        return table[tree.token[i]].sin()
    return (total(tree, tree.left(i)) + total(tree, tree.right(i))).sin()  # the line of the sum


@ps.function
def entry(tree):
    return total(tree, tree.root)


def profile_trees():
    """((0 2) 3) and (0 1): 8 nodes in launches of 5 leaves, then 2 and 1 inner nodes."""
    trees = [ps.data.Tree.from_nested(((0, 2), 3)), ps.data.Tree.from_nested((0, 1))]
    with ps.profile() as run:
        entry.map(trees)
    return run


def data_of(path):
    """The data that a page carries."""
    text = path.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    return text, json.loads(found.group(1))


def counts_of(text):
    """The numbers at the top of a page."""
    found = re.findall(r'<b id="count-(\w+)">([\d,]+)</b>', text)
    return {name: int(count.replace(",", "")) for name, count in found}
