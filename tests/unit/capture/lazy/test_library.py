"""The library of step kinds is bounded: it is emptied between scopes, and nothing notices."""

import pytest
import torch
from torch import nn

import penstock as ps
from penstock.capture.lazy import library as module
from penstock.capture.lazy.kinds import known_kinds
from penstock.capture.lazy.library import library


@pytest.mark.parametrize("granularity", ["op", "module", "graph", "auto"])
def test_maps_agree_when_the_library_is_emptied_before_each(granularity, monkeypatch):
    layer = nn.Linear(3, 3)
    rows = [torch.randn(3) for _ in range(4)]
    kept = []

    def refine(x):
        y = torch.tanh(layer(x)) * 0.5 + x
        kept.append(y)
        return (y[:2] if y.sum() > 0 else y[1:]).sum()

    expected = torch.stack([refine(row) for row in rows])
    monkeypatch.setattr(module, "CAPACITY", 0)
    before = library.generation
    for _ in range(3):
        kept.clear()
        outputs = torch.stack(ps.map(refine, rows, granularity=granularity))
        torch.testing.assert_close(outputs, expected)
        torch.testing.assert_close(kept[0] + 0, torch.tanh(layer(rows[0])) * 0.5 + rows[0])
    assert library.generation >= before + 2
    wanted = torch.autograd.grad(expected.sum(), layer.weight)
    torch.testing.assert_close(torch.autograd.grad(outputs.sum(), layer.weight), wanted)


def test_kinds_of_many_shapes_are_forgotten_too(monkeypatch):
    monkeypatch.setattr(module, "CAPACITY", 10)
    for size in range(1, 25):
        ps.map(lambda x: x.sin().sum(), [torch.ones(size)])
    assert len(known_kinds) < 25
