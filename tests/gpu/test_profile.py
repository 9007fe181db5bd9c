import pytest
import torch

import penstock as ps

pytestmark = pytest.mark.gpu


def test_launches_on_a_gpu_are_timed_by_events_that_are_read_when_asked_for():
    @ps.function
    def turn(x):
        return torch.tanh(x @ x)

    with ps.profile() as run:
        turn.map(torch.ones(4, 8, 8, device="cuda"))
    (launch,) = run.launches
    assert launch.device == "cuda:0"
    assert callable(launch.timing)
    assert launch.seconds > 0
    assert isinstance(launch.timing, float)
