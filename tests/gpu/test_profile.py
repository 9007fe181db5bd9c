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


def test_launches_on_a_gpu_have_a_place_in_time_inside_their_call():
    @ps.function
    def decay(x, steps):
        return ps.while_loop(lambda k, x: k < steps, lambda k, x: (k + 1, x.sin()), (0, x))[1]

    x = torch.ones(3, 1000, device="cuda")
    with ps.profile() as run:
        decay.map(x, [3, 2, 1])
        torch.cuda.synchronize()
    begins = [launch.began for launch in run.launches]
    assert begins == sorted(begins)
    assert run.calls[0].began <= begins[0]
    assert run.calls[0].peak_bytes["cuda:0"] >= x.nbytes
