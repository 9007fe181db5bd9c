"""All that generated code may call, under the names that `penstock.conversion` gives it."""

from penstock.capture.converted.assertions import assert_, fails
from penstock.capture.converted.assignments import augmented, item, set_item
from penstock.capture.converted.branches import if_exp, if_return, if_stmt
from penstock.capture.converted.callees import callee
from penstock.capture.converted.comprehensions import generator, list_comp
from penstock.capture.converted.decisions import and_, chain, compare, not_, or_
from penstock.capture.converted.effects import (
    changes,
    fresh,
    raises,
    trying,
    unless_refused,
    writes,
)
from penstock.capture.converted.iterables import unpack
from penstock.capture.converted.loops import for_stmt, while_stmt
from penstock.capture.converted.undefined import load, unset

__all__ = [
    "and_",
    "assert_",
    "augmented",
    "callee",
    "chain",
    "changes",
    "compare",
    "fails",
    "for_stmt",
    "fresh",
    "generator",
    "if_exp",
    "if_return",
    "if_stmt",
    "item",
    "list_comp",
    "load",
    "not_",
    "or_",
    "raises",
    "set_item",
    "trying",
    "unless_refused",
    "unpack",
    "unset",
    "while_stmt",
    "writes",
]
