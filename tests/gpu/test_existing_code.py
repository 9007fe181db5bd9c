"""Unchanged eager code on a GPU: `ps.map` gives what the plain loop gives."""

import pytest
import torch
from torch import nn

import penstock as ps

pytestmark = pytest.mark.gpu


class Refiner(nn.Module):
    """Layers until a score says stop, states in a list, an embedding in front."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 6)
        self.cell = nn.GRUCell(6, 6)
        self.score = nn.Linear(6, 1)

    def forward(self, tokens):
        states = [torch.zeros(1, 6, device=self.score.weight.device, dtype=torch.float64)]
        for word in self.words(tokens):
            states.append(self.cell(word.unsqueeze(0), states[-1]))
            if self.score(states[-1]).item() > 0.3:
                break
        return torch.cat(states).sum(dim=0), len(states)


@pytest.mark.parametrize("granularity", ["op", "module", "graph", "auto"])
def test_a_model_that_reads_its_own_scores_agrees_with_the_plain_loop(granularity):
    torch.manual_seed(0)
    model = Refiner().double().cuda()
    rows = [torch.randint(20, (n,), device="cuda") for n in (3, 7, 5, 1, 7)]
    found = ps.map(model, rows, granularity=granularity)
    expected = [model(row) for row in rows]
    assert [steps for _, steps in found] == [steps for _, steps in expected]
    weights = torch.randn(6, device="cuda", dtype=torch.float64)
    parameters = [*model.words.parameters(), *model.cell.parameters()]
    mine = torch.autograd.grad(sum(out @ weights for out, _ in found), parameters)
    theirs = torch.autograd.grad(sum(out @ weights for out, _ in expected), parameters)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one[0], other[0])
    torch.testing.assert_close(mine, theirs)


def test_a_batching_scope_works_on_the_device():
    layer = nn.Linear(4, 4).cuda()
    rows = [torch.randn(4, device="cuda") for _ in range(6)]
    with ps.batching():
        outputs = [torch.tanh(layer(row)).sum() for row in rows]
    expected = [torch.tanh(layer(row)).sum() for row in rows]
    torch.testing.assert_close(torch.stack(outputs), torch.stack(expected))
    assert all(output.device.type == "cuda" for output in outputs)
