"""Fresh plans as CUDA graphs, which nobody can tell by results."""

import pytest
import torch

import penstock as ps
from penstock.run.templates.choice import SEEN
from tests.gradients.test_templates import Twin, gradients, trees

pytestmark = pytest.mark.gpu


@pytest.fixture(params=["auto", "always"])
def twin(request):
    """Launches of templates are compiled or not; graphs they are in any case."""
    with ps.set_fusion(request.param):
        made = Twin()
        made.model, made.plain = made.model.cuda(), made.plain.cuda()
        yield made


def templates(model):
    """The templates of the model that are graphs."""
    (entry,) = model.forward._traces._entries
    candidates = entry.executable.templates._candidates.values()
    return [c.template for c in candidates if c.template is not None and c.template.graph]


def test_fresh_plans_are_graphs_and_give_the_same(twin):
    for seed in range(SEEN + 8):
        twin.check(gradients(trees(seed)))
    (template,) = templates(twin.model)
    assert template.way.graph is not None
    assert not templates(twin.plain)


def test_fresh_plans_give_the_same_without_gradients(twin):
    with torch.no_grad():
        for seed in range(SEEN + 4):
            twin.check(lambda model, seed=seed: model.forward.map(trees(seed), out="stack"))
    assert len(templates(twin.model)) == 1


def test_weights_that_change_are_read_anew(twin):
    for seed in range(SEEN + 4):
        twin.check(gradients(trees(seed)))
        for model in (twin.model, twin.plain):
            with torch.no_grad():
                for weight in model.parameters():
                    weight.add_(0.1)


def test_a_run_that_has_not_gone_backward_keeps_its_template(twin):
    def run(model):
        losses = [model.forward.map(trees(k + 50), out="stack").sum() for k in range(3)]
        leaves = list(model.parameters())
        return [torch.autograd.grad(loss, leaves) for loss in losses]

    for seed in range(SEEN + 2):
        twin.check(gradients(trees(seed)))
    twin.check(run)


def test_fresh_plans_are_graphs_under_autocast_too(twin):
    for model in (twin.model, twin.plain):
        model.float()

    def run(model, seed):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model.forward.map(trees(seed), out="stack").float().square().sum()
        return torch.autograd.grad(loss, list(model.parameters()))

    for seed in range(SEEN + 4):
        found = run(twin.model, seed)
        with ps.set_fusion("never"):
            expected = run(twin.plain, seed)
        for gradient, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(
                gradient, wanted, rtol=0.05, atol=0.05 * float(wanted.abs().max())
            )
    assert len(templates(twin.model)) == 1
