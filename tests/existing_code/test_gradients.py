"""Losses of a map go backward like those of the plain loop."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import penstock as ps
from penstock.errors import PenstockError
from tests.existing_code.harness import MAPS, WAYS, Maker, plainly, weighted_sum
from tests.existing_code.programs.recursion import ChildSum, Node, trees

pytestmark = pytest.mark.usefixtures("unchanged_torch")

SECOND_TIME = "backward through the graph a second time"


def model_and_rows():
    make = Maker()
    model = make.module(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)))
    return model, make.sentences((2, 4, 3, 2), 3)


def loss_of(model):
    def loss(xs):
        h = torch.zeros(3)
        for x in xs:
            h = torch.tanh(h + x)
        return model(h).squeeze(0) ** 2

    return loss


def grads(model, rows):
    return [parameter.grad for parameter in model.parameters()] + [row.grad for row in rows]


def run_backward(way, backward):
    model, rows = model_and_rows()
    backward(way(loss_of(model), rows))
    return grads(model, rows)


def one_by_one(losses):
    for loss in losses:
        loss.backward()


def backwards_one_by_one(losses):
    for loss in reversed(losses):
        loss.backward()


def summed(losses):
    sum(losses).backward()


def stacked_mean(losses):
    torch.stack(losses).mean().backward()


def some_only(losses):
    (losses[1] * 2 + losses[3]).backward()


def two_halves(losses):
    (losses[0] + losses[2]).backward()
    (losses[1] * losses[3]).backward()


def retained_twice(losses):
    total = sum(losses)
    total.backward(retain_graph=True)
    total.backward()


def with_a_gradient(losses):
    torch.autograd.backward(losses, [torch.tensor(float(k)) for k in range(4)])


def squared_together(losses):
    (losses[0] * losses[1] * losses[2] * losses[3]).backward()


BACKWARDS = [
    one_by_one,
    backwards_one_by_one,
    summed,
    stacked_mean,
    some_only,
    two_halves,
    retained_twice,
    with_a_gradient,
    squared_together,
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("backward", BACKWARDS, ids=lambda fn: fn.__name__)
def test_grad_attributes_are_those_of_the_plain_loop(backward, way):
    found, expected = run_backward(WAYS[way], backward), run_backward(plainly, backward)
    for mine, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("way", MAPS)
def test_a_second_backward_is_torchs_error(way):
    model, rows = model_and_rows()
    losses = MAPS[way](loss_of(model), rows)
    losses[0].backward()
    with pytest.raises(RuntimeError, match=SECOND_TIME):
        losses[0].backward()
    losses[1].backward()


@pytest.mark.parametrize("way", WAYS)
def test_double_backward_agrees(way):
    def second_order(run):
        model, rows = model_and_rows()
        losses = run(loss_of(model), rows)
        leaves = [*model.parameters(), *rows]
        first = torch.autograd.grad(sum(losses), leaves, create_graph=True)
        return torch.autograd.grad(weighted_sum(list(first)), leaves, allow_unused=True)

    for mine, wanted in zip(second_order(WAYS[way]), second_order(plainly), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-8, atol=1e-10)


def test_gradients_pass_gradcheck():
    model = Maker().module(nn.GRUCell(2, 2))

    def run(*rows):
        return tuple(ps.map(lambda x: model(torch.tanh(x).unsqueeze(0)), list(rows)))

    rows = tuple(Maker().tensors(2, 2))
    assert torch.autograd.gradcheck(run, rows)
    assert torch.autograd.gradgradcheck(run, rows)


@pytest.mark.parametrize("way", WAYS)
def test_gradients_reach_tensors_on_tree_nodes(way):
    def run(mode):
        make = Maker()
        w = make.tensor(2, 2)

        def tree(depth):
            children = [tree(depth - 1) for _ in range(depth)]
            return Node(children=children, value=make.tensor(2))

        def encode(node):
            return torch.tanh(node.value + sum((encode(c) @ w for c in node.children), 0))

        forest = [tree(0), tree(2), tree(3)]
        weighted_sum(mode(encode, forest)).backward()
        return [node.value.grad for root in forest for node in root.walk()] + [w.grad]

    torch.testing.assert_close(run(WAYS[way]), run(plainly), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("way", WAYS)
def test_gradients_flow_through_states_left_on_nodes(way):
    def run(mode):
        model, forest = Maker().module(ChildSum(7, 3, 4)), trees()
        mode(model, forest)
        states = [node.state[1] for tree in forest for node in tree.walk()]
        weighted_sum(states).backward()
        return [parameter.grad for parameter in model.parameters()]

    torch.testing.assert_close(run(WAYS[way]), run(plainly), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("way", MAPS)
def test_outputs_and_escaped_values_may_go_backward_apart(way):
    def run(mode):
        w = torch.tensor([1.0, 2.0], requires_grad=True)
        kept = []

        def step(x):
            kept.append(x * w)
            return torch.sin(x * w) * w

        losses = mode(step, Maker().tensors(3, 2, grad=False))
        sum(y.sum() for y in losses).backward(retain_graph=True)
        sum((y * y).sum() for y in kept).backward()
        return w.grad

    torch.testing.assert_close(run(MAPS[way]), run(plainly))


@pytest.mark.parametrize("way", MAPS)
def test_a_part_that_is_not_used_has_no_gradient(way):
    used, unused = nn.Linear(2, 2), nn.Linear(2, 2)

    def run(x, take):
        return used(x) if take else x * 2

    outputs = MAPS[way](run, Maker().tensors(2, 2), [True, False])
    outputs[1].sum().backward()
    assert used.weight.grad is None
    outputs[0].sum().backward()
    assert used.weight.grad is not None
    assert unused.weight.grad is None


@pytest.mark.parametrize("name", ["register_hook", "retain_grad"])
def test_what_waits_for_a_gradient_inside_a_map_is_refused_by_name(name):
    def run(x):
        y = x * 2
        y.register_hook(print) if name == "register_hook" else y.retain_grad()
        return y

    with pytest.raises(PenstockError, match=name):
        ps.map(run, Maker().tensors(2, 2))


@pytest.mark.parametrize("way", MAPS)
def test_training_steps_give_the_same_weights(way):
    def train(mode):
        model, rows = model_and_rows()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            loss = torch.stack(mode(loss_of(model), rows)).mean()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return list(model.parameters())

    torch.testing.assert_close(train(MAPS[way]), train(plainly), rtol=1e-8, atol=1e-9)


def test_a_weight_changed_before_backward_is_torchs_error():
    w = torch.tensor([2.0, 3.0], requires_grad=True)
    outputs = ps.map(lambda x: x * w * w, Maker().tensors(2, 2))
    with torch.no_grad():
        w.add_(1.0)
    with pytest.raises(RuntimeError, match="inplace operation"):
        sum(y.sum() for y in outputs).backward()


@pytest.mark.parametrize("way", MAPS)
def test_model_and_inputs_are_freed_with_the_outputs(way):
    import gc
    import weakref

    model, rows = model_and_rows()
    outputs = MAPS[way](loss_of(model), rows)
    sum(outputs).backward(retain_graph=True)
    gone = [weakref.ref(thing) for thing in (rows[0], model[0].weight, model)]
    del model, rows, outputs
    gc.collect()
    assert [ref() is None for ref in gone] == [True, True, True]


#: Trees as nested lists, wide enough that values of one launch take the place of dead ones.
FOREST = [
    [[[[[]], []]]],
    [[[], [[]]], [], []],
    [[[[]]], [], []],
    [[[[[[]]]], [], [[]]]],
    [[], [[]], [], [[[], []]]],
    [[[[]], []], [[]]],
    [[], [[[]]]],
]


def tree_of(form):
    return Node(len(form), [tree_of(child) for child in form])


@pytest.mark.parametrize("way", WAYS)
def test_gradients_stay_right_when_a_structure_comes_again(way):
    model = Maker().module(ChildSum(7, 2, 2))

    def gradients(mode):
        states = mode(model, [tree_of(form) for form in FOREST])
        total = sum((k + 1) * h.sum() for k, (_, h) in enumerate(states))
        return torch.autograd.grad(total, list(model.parameters()))

    expected = gradients(plainly)
    for _ in range(3):
        torch.testing.assert_close(gradients(WAYS[way]), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("way", WAYS)
def test_gradients_of_parameters_gather_over_reads(way):
    layer = Maker().module(nn.Linear(2, 2))
    rows = Maker().tensors(3, 2, grad=False)

    def run(x):
        y = torch.tanh(layer(x))
        y.sum().item()
        return y

    def gradients(mode):
        return torch.autograd.grad(weighted_sum(mode(run, rows)), list(layer.parameters()))

    torch.testing.assert_close(gradients(WAYS[way]), gradients(plainly))
