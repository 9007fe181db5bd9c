"""Loops of torch calls on a GPU with conditions computed there: graphs with WHILE nodes."""

import signal

import pytest
import torch

import penstock as ps
from penstock.run.native import whole_block
from tests.gpu.test_programs import on_cpu
from tests.semantics.agreement import assert_agree
from tests.semantics.programs import PROGRAMS
from tests.semantics.ways import run_map, run_plain

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def graphs(monkeypatch):
    """Graphs that were made inside, with launches as they are for users."""
    made = []

    class Noted(whole_block.LoopGraph):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(whole_block, "LoopGraph", Noted)
    with torch.no_grad(), ps.set_fusion("auto"):
        yield made


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_program_of_the_table_agrees_with_plain_python_on_the_cpu(graphs, dtype):
    expected = run_plain(PROGRAMS["fixed_point"].case(dtype))
    case = PROGRAMS["fixed_point"].case(dtype, device="cuda")
    for _ in range(9):
        actual = run_map(case)
    assert len(graphs) == 1
    for number, (left, right) in enumerate(zip(actual, expected, strict=True)):
        assert_agree(on_cpu(left), right, f"instance {number}")


def make_layer(weight):
    @ps.function
    def layer(x, limit):
        while x.amax() < limit:
            x = torch.relu(x @ weight) + 1
        return x

    return layer


def test_one_row_makes_as_many_iterations_as_it_must(graphs):
    weight = torch.eye(64, device="cuda")
    layer, x = make_layer(weight), torch.zeros(64, device="cuda")
    for limit in (0.0, 1.0, 7.0, 500.0):
        assert layer(x, torch.tensor(limit, device="cuda"))[0] == limit
    with torch.inference_mode():
        assert layer(x, torch.tensor(9.0, device="cuda"))[0] == 9
    weight.mul_(2)
    assert layer(x, torch.tensor(9.0, device="cuda"))[0] == 15
    assert len(graphs) == 1


def test_many_rows_go_on_until_the_last_is_done(graphs):
    weight = torch.eye(64, device="cuda")
    limits = torch.arange(100, device="cuda", dtype=torch.float32)
    result = make_layer(weight).map(torch.zeros(100, 64, device="cuda"), limits, out="stack")
    assert torch.equal(result[:, 5], limits)
    assert len(graphs) == 1


class Interrupted(Exception):
    pass


def test_a_loop_without_end_can_be_interrupted(graphs):
    layer, x = make_layer(torch.eye(64, device="cuda")), torch.zeros(64, device="cuda")

    def handle(number, frame):
        raise Interrupted

    layer(x, torch.tensor(5.0, device="cuda"))
    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Interrupted):
            layer(x, torch.tensor(float("nan"), device="cuda").nan_to_num(float("inf")))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert layer(x, torch.tensor(5.0, device="cuda"))[0] == 5
    assert len(graphs) == 1


def test_gradients_through_such_a_loop_are_those_on_the_cpu(graphs):
    found = []
    for device in ("cpu", "cuda"):
        weight = (0.4 * torch.eye(64, device=device)).requires_grad_()
        with torch.enable_grad():
            out = make_layer(weight)(
                torch.ones(64, device=device), torch.tensor(1.6, device=device)
            )
            found.append(torch.autograd.grad(out.square().sum(), weight)[0].cpu())
    torch.testing.assert_close(*found)
    assert not graphs
