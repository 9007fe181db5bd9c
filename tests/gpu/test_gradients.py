"""Gradients on a GPU: as on the CPU, and the same bits under deterministic algorithms."""

import pytest
import torch
from torch import nn

import penstock as ps

pytestmark = pytest.mark.gpu


class Reader(nn.Module):
    """A recurrent net over tokens whose loop reads a shared table."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 8)
        self.cell = nn.GRUCell(8, 8)

    @ps.function
    def forward(self, tokens):
        def step(h, token):
            return self.cell(self.table(token), h), token

        last, _ = ps.scan(step, self.table.weight[0] * 0, tokens)
        return ps.cond(last.sum() > 0, lambda: last.sin(), lambda: last * 2).sum()


def made(device):
    torch.manual_seed(0)
    model = Reader().double()
    tokens = [torch.randint(0, 5, (length,)) for length in (3, 1, 7, 4, 2, 5)]
    return model.to(device), tokens


def gradients(model, tokens, **options):
    device = model.table.weight.device
    loss = sum(ps.map(model, [row.to(device) for row in tokens]))
    return torch.autograd.grad(loss, list(model.parameters()), **options)


def test_gradients_on_a_gpu_equal_those_on_the_cpu():
    on_gpu, on_cpu = gradients(*made("cuda")), gradients(*made("cpu"))
    torch.testing.assert_close([grad.cpu() for grad in on_gpu], list(on_cpu))


def test_second_derivatives_on_a_gpu_equal_those_on_the_cpu():
    def second(device):
        model, tokens = made(device)
        first = gradients(model, tokens, create_graph=True)
        return torch.autograd.grad(sum(grad.pow(2).sum() for grad in first), model.table.weight)[0]

    torch.testing.assert_close(second("cuda").cpu(), second("cpu"))


def test_deterministic_algorithms_give_the_same_bits(monkeypatch):
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    try:
        model, tokens = made("cuda")
        first, second = (gradients(model.float(), tokens * 20) for _ in range(2))
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_training_steps_are_recorded_with_their_times():
    model, tokens = made("cuda")
    with ps.profile() as run:
        gradients(model, tokens)
    backward = [launch for launch in run.launches if launch.is_backward]
    assert backward
    assert all(launch.device.startswith("cuda") and launch.seconds > 0 for launch in backward)
