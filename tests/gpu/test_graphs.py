"""A plan that is run again and again becomes a CUDA graph, which nobody can tell by results."""

import copy
import logging

import pytest
import torch
from torch import nn

import penstock as ps
from penstock.data import random_binary_trees
from penstock.run.graphs import STREAK

pytestmark = pytest.mark.gpu

LENGTHS = (3, 1, 7, 4)


@pytest.fixture(autouse=True)
def graphs():
    """Launches are compiled nowhere here, but graphs are made."""
    with ps.set_fusion("auto"):
        yield


class Reader(nn.Module):
    """A recurrent net over sequences, with a weight that is computed of others."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(8, 8)
        self.scale = nn.Parameter(torch.ones(8))

    @ps.function
    def forward(self, steps):
        start = torch.tanh(self.scale) * 2

        def step(h, x):
            return self.cell(x, h), ()

        last, _ = ps.scan(step, start, steps)
        return last, last.sum()


class Twin:
    """The same model twice: one that becomes graphs, one that is run plainly."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = Reader().double().cuda()
        self.plain = copy.deepcopy(self.model)

    def inputs(self, seed):
        draw = torch.Generator().manual_seed(seed)
        return [torch.randn(n, 8, generator=draw, dtype=torch.double).cuda() for n in LENGTHS]

    def both(self, run):
        """What `run(model)` gives for each."""
        found = run(self.model)
        with ps.set_fusion("never"):
            expected = run(self.plain)
        return found, expected

    def warm(self, run):
        """Run until graphs are in use."""
        for _ in range(STREAK + 3):
            run(self.model)

    def graphs(self):
        """The captured plans of the model, by purpose."""
        (entry,) = self.model.forward._traces._entries
        return [made for _, made in entry.executable.graphs._captured.values() if made is not None]


def train(inputs):
    def run(model):
        losses = [loss for _, loss in ps.map(model, inputs)]
        return torch.autograd.grad(sum(losses), list(model.parameters()))

    return run


def infer(inputs):
    def run(model):
        with torch.no_grad():
            return [last for last, _ in ps.map(model, inputs)]

    return run


@pytest.mark.parametrize("way", [train, infer], ids=["training", "inference"])
def test_results_are_those_of_plain_runs_for_other_data_and_changed_weights(way):
    twin = Twin()
    twin.warm(way(twin.inputs(0)))
    assert len(twin.graphs()) == 1
    for seed in range(3):
        found, expected = twin.both(way(twin.inputs(seed)))
        torch.testing.assert_close(found, expected)
        with torch.no_grad():
            for model in (twin.model, twin.plain):
                for parameter in model.parameters():
                    parameter.mul_(1.1)


def test_a_second_run_that_is_alive_at_the_same_time_is_run_plainly():
    twin = Twin()
    twin.warm(train(twin.inputs(0)))

    def two(model):
        first = ps.map(model, twin.inputs(1))
        second = ps.map(model, twin.inputs(2))
        weights = list(model.parameters())
        late = torch.autograd.grad(sum(loss for _, loss in second), weights)
        return [*torch.autograd.grad(sum(loss for _, loss in first), weights), *late]

    torch.testing.assert_close(*twin.both(two))


def test_partial_losses_retained_graphs_and_second_orders():
    twin = Twin()
    twin.warm(train(twin.inputs(0)))

    def odd(model):
        weights = list(model.parameters())
        rows = ps.map(model, twin.inputs(1))
        some = torch.autograd.grad(rows[2][1], weights, retain_graph=True)
        rest = torch.autograd.grad(sum(loss for _, loss in rows), weights, create_graph=True)
        second = torch.autograd.grad(sum(grad.pow(2).sum() for grad in rest), weights)
        return [*some, *rest, *second]

    for _ in range(2):
        torch.testing.assert_close(*twin.both(odd))


def test_a_second_backward_is_the_error_of_torch():
    twin = Twin()
    twin.warm(train(twin.inputs(0)))
    loss = sum(loss for _, loss in ps.map(twin.model, twin.inputs(1)))
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_so_it_is_after_another_run_has_taken_the_graph():
    twin = Twin()
    twin.warm(train(twin.inputs(0)))
    loss = sum(loss for _, loss in ps.map(twin.model, twin.inputs(1)))
    loss.backward()
    other = sum(loss for _, loss in ps.map(twin.model, twin.inputs(2)))
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    other.backward()


def test_instances_go_backward_one_by_one():
    twin = Twin()

    def one_by_one(model):
        weights = list(model.parameters())
        return [torch.autograd.grad(loss, weights) for _, loss in ps.map(model, twin.inputs(1))]

    twin.warm(one_by_one)
    torch.testing.assert_close(*twin.both(one_by_one))


def test_a_weight_changed_between_forward_and_backward_is_the_error_of_torch():
    twin = Twin()
    twin.warm(train(twin.inputs(0)))
    loss = sum(loss for _, loss in ps.map(twin.model, twin.inputs(1)))
    with torch.no_grad():
        twin.model.cell.weight_hh.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_weights_in_other_memory_are_seen():
    twin = Twin()
    twin.warm(train(twin.inputs(0)))
    for model in (twin.model, twin.plain):
        model.cell.weight_hh.data = model.cell.weight_hh.data * 0.5
    torch.testing.assert_close(*twin.both(train(twin.inputs(1))))


def test_outputs_live_on_when_the_graph_is_run_again():
    twin = Twin()
    run = infer(twin.inputs(1))
    twin.warm(run)
    before = run(twin.model)
    kept = [row.clone() for row in before]
    infer(twin.inputs(2))(twin.model)
    torch.testing.assert_close(before, kept)


def test_inference_mode_and_training_take_turns():
    twin = Twin()

    def turns(model):
        with torch.inference_mode():
            rows = [last.clone() for last, _ in ps.map(model, twin.inputs(1))]
        return [*rows, *train(twin.inputs(1))(model)]

    twin.warm(turns)
    assert len(twin.graphs()) == 2
    found, expected = twin.both(turns)
    torch.testing.assert_close([x.clone() for x in found], [x.clone() for x in expected])


def test_what_cannot_be_captured_runs_plainly(caplog, monkeypatch):
    def refuse(run, device):
        raise RuntimeError("not today")

    monkeypatch.setattr("penstock.run.graphs.capture", refuse)
    twin = Twin()
    with caplog.at_level(logging.INFO, "penstock"):
        twin.warm(train(twin.inputs(0)))
    assert "not today" in caplog.text
    assert not twin.graphs()
    torch.testing.assert_close(*twin.both(train(twin.inputs(1))))


def test_trees_on_the_host_become_graphs_for_a_model_on_the_device():
    torch.manual_seed(0)
    model = ps.nn.BinaryTreeLSTM(nn.Embedding(50, 8), 6).double().cuda()
    plain = copy.deepcopy(model)
    shapes = [random_binary_trees(5, leaves=(3, 6), vocabulary=50, seed=0) for _ in range(3)]
    for number, trees in enumerate(shapes):
        for tree in trees:
            tree.token.add_(number).remainder_(50)

    def train(model, trees):
        loss = ps.map(model, trees, out="stack").sum()
        return torch.autograd.grad(loss, list(model.parameters()))

    for _ in range(STREAK + 3):
        train(model, shapes[0])
    (entry,) = model.forward._traces._entries
    ((_, captured),) = entry.executable.graphs._captured.values()
    assert captured is not None
    assert captured.mirrors
    for trees in shapes:
        found = train(model, trees)
        with ps.set_fusion("never"):
            expected = train(plain, trees)
        torch.testing.assert_close(found, expected)
