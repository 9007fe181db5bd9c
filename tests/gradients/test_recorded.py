"""Gradients of recorded steps are those of the same calls in plain torch."""

import gc
import weakref

import pytest
import torch

from penstock.autodiff.page import Page
from penstock.errors import NanError, RepetitionError
from tests.recorded_steps import Steps


def leaf(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed + 13 * len(shape))
    values = torch.randn(shape, dtype=torch.float64, generator=generator)
    return values.requires_grad_()


def scalar(tensors):
    """A sum with weights that tell everything apart."""
    total = 0
    for number, tensor in enumerate(tensors):
        weights = torch.linspace(0.3, 1.7, max(tensor.numel(), 1), dtype=torch.float64)
        weights = weights[: tensor.numel()].reshape(tensor.shape) * (number + 1)
        total = total + (tensor * weights).sum()
    return total


def assert_same(outputs, expected, leaves):
    """Values, gradients and gradients of gradients."""
    torch.testing.assert_close(outputs, expected)
    mine, theirs = scalar(outputs), scalar(expected)
    first = torch.autograd.grad(mine, leaves, retain_graph=True, allow_unused=True)
    wanted = torch.autograd.grad(theirs, leaves, retain_graph=True, allow_unused=True)
    assert [grad is None for grad in first] == [grad is None for grad in wanted]
    for grad, other in zip(first, wanted, strict=True):
        if grad is not None:
            torch.testing.assert_close(grad, other)
    assert_same_second(mine, theirs, leaves)


def assert_same_second(mine, theirs, leaves):
    found = []
    for loss in (mine, theirs):
        grads = torch.autograd.grad(
            loss, leaves, create_graph=True, retain_graph=True, allow_unused=True
        )
        pairs = zip(grads, leaves, strict=True)
        total = sum((grad.sin() * (x + 1)).sum() for grad, x in pairs if grad is not None)
        found.append(torch.autograd.grad(total, leaves, retain_graph=True, materialize_grads=True))
    torch.testing.assert_close(*found)


@pytest.fixture
def steps():
    return Steps()


def test_weights_and_inputs_get_their_gradients(steps):
    w, b = leaf(3, 3), leaf(3)
    xs = [leaf(3, seed=k) for k in range(4)]
    lazy_w, lazy_b = steps.weight(w), steps.weight(b)
    made = []
    for x in xs:
        h = steps.call("torch.nn.functional.linear", steps.input(x), lazy_w, lazy_b)
        made.append(steps.call("torch.tanh", h))
    steps.flush(*made)
    expected = [torch.tanh(torch.nn.functional.linear(x, w, b)) for x in xs]
    assert_same(steps.outputs(*made), expected, [w, b, *xs])


def test_one_block_with_different_weights(steps):
    weights = [leaf(3, 3, seed=k) for k in range(2)]
    xs = [leaf(2, 3, seed=k) for k in range(4)]
    lazy = [steps.weight(w) for w in weights]
    made = []
    for k, x in enumerate(xs):
        made.append(steps.call("torch.matmul", steps.input(x), lazy[k % 2]))
    # the step kinds share one block, as those of equal modules do
    block = steps.kinds[0].block
    steps.kinds[1:] = [
        type(kind)(kind.name, kind.operands, kind.results, block) for kind in steps.kinds[1:]
    ]
    steps.flush(*made)
    expected = [x @ weights[k % 2] for k, x in enumerate(xs)]
    assert_same(steps.outputs(*made), expected, [*weights, *xs])


def test_parts_and_joins_in_both_directions(steps):
    xs = [leaf(4, 3, seed=k) for k in range(3)]
    y = leaf(3)
    row = steps.input(y)
    made, expected = [], []
    for x in xs:
        whole = steps.call("torch.sin", steps.input(x))
        top = steps.call("torch.exp", steps.part(whole, 0, 2))
        joined = steps.join(top, steps.join(row, steps.part(whole, 3), row, is_stack=True))
        made += [steps.call("torch.mul", joined, joined), steps.part(whole, 2)]
        s = x.sin()
        both = torch.cat([s[:2].exp(), torch.stack([y, s[3], y])])
        expected += [both * both, s[2]]
    steps.flush(*made)
    assert_same(steps.outputs(*made), expected, [*xs, y])


def test_a_tensor_that_is_input_several_times_and_a_weight_too(steps):
    x = leaf(3)
    first, second, shared = steps.input(x), steps.input(x), steps.weight(x)
    made = steps.call("torch.mul", steps.call("torch.mul", first, second), shared)
    steps.flush(made)
    assert_same(steps.outputs(made), [x * x * x], [x])


def test_an_input_can_be_an_output(steps):
    x = leaf(3)
    value = steps.input(x)
    steps.flush(value)
    assert_same(steps.outputs(value, value), [x * 1, x * 1], [x])


def test_several_flushes_are_one_tape(steps):
    w, x = leaf(3, 3), leaf(3)
    lazy_w, h, expected = steps.weight(w), steps.input(x), x
    for _ in range(5):
        h = steps.call("torch.tanh", steps.call("torch.matmul", h, lazy_w))
        expected = torch.tanh(expected @ w)
        steps.flush(h)
    assert_same(steps.outputs(h), [expected], [w, x])


def test_outputs_taken_early_keep_their_gradients_when_slots_are_used_again():
    steps = Steps()
    x = leaf(3)
    early = steps.call("torch.sin", steps.input(x))
    steps.flush(early)
    (output,) = steps.outputs(early)
    for k in range(1500):
        last = steps.call("torch.cos", steps.input(leaf(3, seed=k)))
        if k % 100 == 99:
            steps.flush(last)
    torch.testing.assert_close(output, x.sin())
    assert_same([output], [x.sin()], [x])


def two_outputs():
    steps = Steps()
    w, x = leaf(3, 3), leaf(3)
    shared = steps.call("torch.tanh", steps.call("torch.matmul", steps.input(x), steps.weight(w)))
    left = steps.call("torch.sin", shared)
    steps.flush(left, shared)
    (one,) = steps.outputs(left)
    right = steps.call("torch.cos", shared)
    steps.flush(right)
    (two,) = steps.outputs(right)
    h = torch.tanh(x @ w)
    return one, two, h.sin(), h.cos(), [w, x]


def test_two_nodes_over_one_tape():
    one, two, first, second, leaves = two_outputs()
    assert one.grad_fn is not two.grad_fn
    assert_same([one], [first], leaves)
    assert_same([two], [second], leaves)
    assert_same([one, two], [first, second], leaves)


def test_rows_shared_by_nodes_are_used_up_by_none():
    one, two, first, second, leaves = two_outputs()
    mine = torch.autograd.grad(one.sum(), leaves)
    torch.testing.assert_close(mine, torch.autograd.grad(first.sum(), leaves, retain_graph=True))
    mine = torch.autograd.grad(two.sum(), leaves)
    torch.testing.assert_close(mine, torch.autograd.grad(second.sum(), leaves))


def test_rows_of_one_launch_go_backward_apart(steps):
    w = leaf(3, 3)
    xs = [leaf(3, seed=k) for k in range(3)]
    lazy = steps.weight(w)
    made = [steps.call("torch.tanh", steps.call("torch.matmul", steps.input(x), lazy)) for x in xs]
    steps.flush(*made)
    for output in steps.outputs(*made):
        scalar([output]).backward()
    mine, w.grad = w.grad, None
    for x in xs:
        scalar([torch.tanh(x @ w)]).backward()
    torch.testing.assert_close(mine, w.grad)
    pages = [page for page in steps.run.tape.entries if isinstance(page, Page)]
    assert all(page.saved == [] for page in pages)


def test_no_cotangent_is_not_a_zero_one(steps):
    x, y = leaf(3), leaf(3)
    with torch.no_grad():
        y[0] = 0.0
    made = [steps.call("torch.log", steps.input(each)) for each in (x.abs().detach(), y)]
    kept = steps.call("torch.sqrt", steps.input(y))
    steps.flush(*made, kept)
    outputs = steps.outputs(*made, kept)
    (grad,) = torch.autograd.grad(outputs[1][1:].sum(), y)
    torch.testing.assert_close(grad[1:], 1 / y.detach()[1:])


def test_steps_under_no_grad_pass_nothing_on(steps):
    w, x = leaf(3, 3), leaf(3)
    lazy_w, value = steps.weight(w), steps.input(x)
    constant = steps.call("torch.matmul", value, lazy_w, no_grad=True)
    made = steps.call("torch.mul", steps.call("torch.sin", value), constant)
    steps.flush(made, constant)
    plain, output = steps.outputs(constant, made)
    assert not plain.requires_grad
    assert_same([output], [x.sin() * (x @ w).detach()], [x, w])


def test_a_detached_name_of_a_value_passes_nothing_on(steps):
    x = leaf(3)
    value = steps.call("torch.sin", steps.input(x))
    made = steps.call("torch.mul", value, value.detach())
    steps.flush(made, value)
    output, plain = steps.outputs(made, value.detach())
    assert not plain.requires_grad
    assert_same([output], [x.sin() * x.sin().detach()], [x])


def test_rows_behind_a_detached_name_are_not_consumed(steps):
    x, y = leaf(3), leaf(3, seed=1)
    value = steps.call("torch.sin", steps.input(x))
    made = steps.call("torch.mul", steps.input(y), value.detach())
    steps.flush(made, value)
    output, sine = steps.outputs(made, value)
    torch.autograd.grad(sine.sum(), x)
    (grad,) = torch.autograd.grad(output.sum(), y, create_graph=True)
    torch.testing.assert_close(grad, x.sin().detach())


def test_a_result_with_indices_beside_it(steps):
    xs = [leaf(5, seed=k) for k in range(2)]
    pairs = [steps.call("torch.sort", steps.input(x)) for x in xs]
    steps.flush(*(lazy for pair in pairs for lazy in pair))
    flat = steps.outputs(*(lazy for pair in pairs for lazy in pair))
    torch.testing.assert_close(flat[1::2], [x.sort().indices for x in xs])
    assert_same(flat[::2], [x.sort().values for x in xs], xs)


def test_without_grad_mode_outputs_are_plain(steps):
    made = steps.call("torch.sin", steps.input(leaf(3)))
    steps.flush(made)
    with torch.no_grad():
        assert not steps.outputs(made)[0].requires_grad
    assert steps.outputs(made)[0].requires_grad


def test_a_weight_changed_after_the_flush_is_noticed(steps):
    w, x = leaf(3), leaf(3)
    made = steps.call("torch.mul", steps.input(x), steps.weight(w))
    steps.flush(made)
    (output,) = steps.outputs(made)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


def test_an_input_changed_after_the_flush_does_no_harm(steps):
    x = leaf(3)
    made = steps.call("torch.sin", steps.input(x))
    steps.flush(made)
    (output,) = steps.outputs(made)
    before = x.detach().clone()
    with torch.no_grad():
        x.add_(1)
    (grad,) = torch.autograd.grad(output.sum(), x)
    torch.testing.assert_close(grad, before.cos())


def test_backward_between_flushes_leaves_the_scope_usable(steps):
    w = leaf(3)
    lazy = steps.weight(w)
    for k in range(3):
        x = leaf(3, seed=k)
        made = steps.call("torch.mul", steps.input(x), lazy)
        steps.flush(made)
        assert_same(steps.outputs(made), [x * w], [x, w])


def test_gradients_after_the_run_was_finished(steps):
    w, x = leaf(3, 3), leaf(3)
    made = steps.call("torch.tanh", steps.call("torch.matmul", steps.input(x), steps.weight(w)))
    steps.flush(made)
    outputs = steps.outputs(made)
    steps.finish()
    assert_same(outputs, [torch.tanh(x @ w)], [w, x])


def test_nothing_is_left_after_the_outputs_are_dropped(steps):
    w, x = leaf(3, 3), leaf(3)
    made = steps.call("torch.tanh", steps.call("torch.matmul", steps.input(x), steps.weight(w)))
    steps.flush(made)
    outputs = steps.outputs(made)
    steps.finish()
    run = weakref.ref(steps.run)
    pages = [weakref.ref(saved) for page in run().tape.entries for saved in page.saved]
    del steps.run
    gc.collect()
    assert run() is not None
    scalar(outputs).backward()
    assert all(saved() is None for saved in pages)
    del outputs
    gc.collect()
    assert run() is None


# ---- blocks that are taken as they are -----------------------------------------------------------


def cell(x, w):
    return torch.tanh(x * w), x.sum() * w


def stacked_cell(rows, x, w):
    assert x.shape[0] == rows
    return torch.tanh(x * w), x.sum(1, keepdim=True) * w


OPAQUE = pytest.mark.parametrize(
    ("function", "is_batched"), [(cell, False), (stacked_cell, True)], ids=["rows", "batched"]
)


def record_cells(steps, function, is_batched, count=4, **options):
    w = leaf(3, seed=9)
    xs = [leaf(3, seed=k) for k in range(count)]
    lazy = steps.weight(w)
    made = []
    for x in xs:
        value = steps.call("torch.sin", steps.input(x))
        made += steps.opaque(
            "cell", function, value, lazy, shapes=[(3,), (3,)], is_batched=is_batched, **options
        )
    expected = [each for x in xs for each in cell(x.sin(), w)]
    steps.flush(*made)
    return made, expected, [w, *xs]


@OPAQUE
def test_an_opaque_block_has_the_gradients_of_its_function(steps, function, is_batched):
    made, expected, leaves = record_cells(steps, function, is_batched)
    assert_same(steps.outputs(*made), expected, leaves)


@OPAQUE
def test_rows_of_an_opaque_block_go_backward_apart(steps, function, is_batched):
    made, expected, leaves = record_cells(steps, function, is_batched)
    for k, output in enumerate(steps.outputs(*made)):
        if k % 2 == 0:
            scalar([output]).backward()
    mine = [tensor.grad for tensor in leaves]
    for tensor in leaves:
        tensor.grad = None
    for other in expected[::2]:
        scalar([other]).backward(retain_graph=True)
    torch.testing.assert_close(mine, [tensor.grad for tensor in leaves])
    page = next(page for page in steps.run.tape.entries if page.block.name == "cell")
    assert page.graph is None


@OPAQUE
def test_an_opaque_block_is_consumed_and_can_be_retained(steps, function, is_batched):
    made, _, leaves = record_cells(steps, function, is_batched)
    loss = scalar(steps.outputs(*made))
    kept = torch.autograd.grad(loss, leaves, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(loss, leaves), kept)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, leaves)


def test_an_opaque_block_keeps_its_arguments_when_slots_are_used_again(steps):
    made, expected, leaves = record_cells(steps, cell, False, count=40)
    outputs = steps.outputs(*made)
    for _ in range(40):
        other = [steps.call("torch.cos", steps.input(leaf(3))) for _ in range(64)]
        steps.flush(*other[:1])
    first = torch.autograd.grad(scalar(outputs), leaves)
    torch.testing.assert_close(first, torch.autograd.grad(scalar(expected), leaves))


def test_a_step_that_cannot_run_twice_has_no_gradients_of_gradients(steps):
    made, _, leaves = record_cells(steps, cell, False, is_repeatable=False)
    loss = scalar(steps.outputs(*made))
    torch.autograd.grad(loss, leaves, retain_graph=True)
    with pytest.raises(RepetitionError, match="cannot be run twice"):
        torch.autograd.grad(loss, leaves, create_graph=True)


def test_an_opaque_function_may_change_what_is_shared(steps):
    w = leaf(3)
    seen = torch.zeros(3, dtype=torch.float64)

    def tracked(x, w, seen):
        with torch.no_grad():
            seen.add_(x)
        return x * w

    xs = [leaf(3, seed=k) for k in range(3)]
    lazy, state = steps.weight(w), steps.weight(seen)
    made = [
        steps.opaque("tracked", tracked, steps.input(x), lazy, state, shapes=[(3,)]) for x in xs
    ]
    steps.flush(*made)
    torch.testing.assert_close(seen, sum(x.detach() for x in xs))
    loss = scalar(steps.outputs(*made))
    found = torch.autograd.grad(loss, [w, *xs])
    torch.testing.assert_close(found, torch.autograd.grad(scalar([x * w for x in xs]), [w, *xs]))


def test_anomaly_mode_names_the_line_of_a_nan(steps):
    x = leaf(3)
    with torch.no_grad():
        x[1] = 0.0
    value = steps.call("torch.sqrt", steps.input(x.detach().abs().requires_grad_()))
    made = steps.call("torch.mul", value, steps.input(torch.zeros(3, dtype=torch.float64)))
    steps.run.numbers = [3]
    steps.flush(made)
    found = pytest.raises(NanError, match=r"steps\.py:1")
    with torch.autograd.set_detect_anomaly(True), found:
        steps.outputs(made)[0].sum().backward()
