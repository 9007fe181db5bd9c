"""`ps.profile` records backward launches too, also those of a backward pass after its end."""

import pytest
import torch

import penstock as ps

pytestmark = pytest.mark.usefixtures("interpreted_loops")


@ps.function
def decay(x, n):
    return ps.while_loop(lambda k, h: k < n, lambda k, h: (k + 1, torch.tanh(h)), (0, x))[1]


def test_backward_launches_are_recorded_in_order():
    x = torch.randn(3, 2, requires_grad=True)
    with ps.profile() as run:
        sum(row.sum() for row in decay.map(x, [1, 2, 3])).backward()
    forward = [launch for launch in run.launches if not launch.is_backward]
    backward = [launch for launch in run.launches if launch.is_backward]
    assert [launch.rows for launch in forward] == [3, 2, 1]
    assert [launch.rows for launch in backward] == [1, 2, 3]
    assert {launch.block for launch in backward} == {f"{forward[0].block}.backward"}
    assert backward[0].shapes == ((1, 2),)
    assert ".backward" in run.summary()


def test_a_backward_pass_belongs_to_the_profile_of_its_forward():
    x = torch.randn(3, 2, requires_grad=True)
    with ps.profile() as run:
        rows = decay.map(x, [1, 2, 3])
    count = len(run.launches)
    sum(row.sum() for row in rows).backward()
    assert len(run.launches) == 2 * count


def test_explanations_speak_of_forward_launches_alone():
    x = torch.randn(3, 2, requires_grad=True)
    with ps.profile() as run:
        sum(row.sum() for row in decay.map(x, [1, 1, 1])).backward()
    assert "1 block ran wide" in run.explain()
