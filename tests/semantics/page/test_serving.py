"""docs/semantics.md: which program serves a call (S99 to S104)."""

from __future__ import annotations

import types

import numpy as np
import pytest
import torch
from torch import nn

import penstock as ps
from penstock.capture.reach import MOST_FOLLOWED, MOST_ITEMS, Reach

X = torch.tensor(3.0)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return x * self.weight


class Negated(Scaled):
    def forward(self, x):
        return -x * self.weight


def test_s99_values_items_attributes_and_classes_are_compared():
    kept = types.SimpleNamespace(sizes=[{"a": 1}], cell=Scaled(), unnamed=0)
    f = ps.function(lambda x: kept.cell(x) * kept.sizes[0]["a"])
    assert f(X) == 6
    kept.sizes[0]["a"] = 2
    assert f(X) == 12
    kept.cell.__class__ = Negated
    assert f(X) == -12
    kept.cell.weight = nn.Parameter(torch.tensor(1.0))
    kept.unnamed = 1
    assert f(X) == -6
    assert "traced 3 times" in f.explain_retraces()


def test_s100_so_is_the_code_of_helpers_and_what_classes_have():
    def helper(x, k=2):
        return x * k

    class Owner:
        @staticmethod
        def scaled(x):
            return helper(x)

    f = ps.function(lambda x: Owner.scaled(x))
    assert f(X) == 6
    helper.__defaults__ = (3,)
    assert f(X) == 9
    helper.__code__ = (lambda x, k: x + k).__code__
    assert f(X) == 6
    Owner.scaled = staticmethod(lambda x: -x)
    assert f(X) == -3


@pytest.mark.filterwarnings("ignore:.*was traced")
def test_s101_an_object_is_not_taken_for_another_in_its_memory():
    acts = {}
    f = ps.function(lambda x: acts["act"](x))
    for number in range(30):
        made = (lambda x: x + 1), (lambda x: x - 1), (lambda x: x * 4)
        acts["act"] = made[number % 3]
        del made
        assert f(X) == (4, 2, 12)[number % 3]
        del acts["act"]


def test_s102_what_is_not_followed():
    assert (MOST_ITEMS, MOST_FOLLOWED) == (256, 2000)
    table, small, large = np.ones(2), [[1]] * 256, [[1]] * 257
    f = ps.function(lambda x: x * float(table[0]) * small[0][0] * large[0][0])
    names = Reach(f.__wrapped__).values
    assert "small[0][0]" in names
    assert "large[0][0]" not in names
    assert f(X) == 3
    table[0] = 5
    assert f(X) == 3
    many = [[[number] for _ in range(200)] for number in range(20)]
    numbers = [value for value in Reach(lambda: many).values.values() if type(value) is int]
    assert 1500 < len(numbers) < MOST_FOLLOWED


def test_s103_an_unbound_method_is_that_of_its_first_argument():
    class Base(nn.Module):
        @ps.function
        def forward(self, x):
            return self.scaled(x) if x > 0 else x

        def scaled(self, x):
            return x * 2

    class More(Base):
        @ps.function
        def forward(self, x):
            return Base.forward(self, x) + 1

        def scaled(self, x):
            return x * 3

    assert More().forward.map([X, -X]) == [10, -2]
    assert Base.forward(More(), X) == 9


def test_s104_parameters_changed_before_backward():
    w = nn.Parameter(torch.tensor(2.0))
    by_tanh, by_neg = ps.function(lambda x: x + w.tanh())(X), ps.function(lambda x: x + -w)(X)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        by_tanh.backward()
    by_neg.backward()
    assert w.grad == -1
