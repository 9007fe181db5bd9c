"""Memory that is kept for later calls is given back when an allocation fails."""

from __future__ import annotations

import pytest
import torch

import penstock as ps
from penstock.run import runner
from penstock.run.memory import lasting
from penstock.run.memory.lasting import give_back_lasting, note_lasting


class Keeper:
    """Has something to give back, once."""

    def __init__(self):
        self.has_some = True

    def give_back(self):
        had_some, self.has_some = self.has_some, False
        return had_some


@pytest.fixture
def keeper(monkeypatch):
    monkeypatch.setattr(lasting, "_known", type(lasting._known)())
    made = Keeper()
    note_lasting(made)
    return made


@pytest.fixture
def failing(monkeypatch):
    """Makes the next launches fail for want of memory."""
    left = []
    launch = runner.Runner._launch

    def fail(self, step):
        if left:
            left.pop()
            raise torch.OutOfMemoryError("no memory")
        launch(self, step)

    monkeypatch.setattr(runner.Runner, "_launch", fail)
    return left


@ps.function
def doubled(x):
    return x * 2


def test_a_launch_is_tried_again_when_something_was_given_back(keeper, failing):
    failing.append(1)
    assert doubled(torch.ones(2)).tolist() == [2, 2]
    assert not keeper.has_some


def test_the_error_is_raised_where_nothing_is_left_to_give_back(keeper, failing):
    failing += [1, 1]
    with pytest.raises(torch.OutOfMemoryError, match="no memory"):
        doubled(torch.ones(2))
    assert doubled(torch.ones(2)).tolist() == [2, 2]


def test_nothing_is_kept_of_those_who_are_gone(keeper):
    assert give_back_lasting()
    assert not give_back_lasting()
    note_lasting(Keeper())
    assert not give_back_lasting()
