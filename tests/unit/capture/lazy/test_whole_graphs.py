"""All that an instance records between two reads is one step, where others record the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import penstock as ps
from penstock.capture.lazy.whole_graphs import Renaming, join_graphs
from penstock.plan.recorded import Recorded

COUNT = 8


def numbers(count=COUNT, size=4):
    generator = torch.Generator().manual_seed(3)
    made = torch.randn(count, size, generator=generator, dtype=torch.float64)
    return [row.clone().requires_grad_() for row in made]


weight = nn.Parameter(
    torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
)


def run(fn, rows, granularity, *columns):
    """The results, the gradients of all that asks for them, and the launches."""
    torch.manual_seed(7)
    with ps.profile() as profile:
        results = ps.map(fn, rows, *columns, granularity=granularity)
    leaves = [leaf for result in results for leaf in _tensors(result)]
    weights = torch.randn(len(leaves), generator=torch.Generator().manual_seed(2))
    flowing = [
        (leaf * k).sum() for leaf, k in zip(leaves, weights, strict=True) if leaf.requires_grad
    ]
    asked = [weight, *rows]
    grads = torch.autograd.grad(sum(flowing), asked, allow_unused=True) if flowing else []
    return leaves, grads, [event for event in profile.launches if not event.is_backward]


def _tensors(result):
    return result if isinstance(result, tuple | list) else [result]


def check(fn, *columns, launches, count=COUNT):
    """All granularities agree, and the coarsest launches so often."""
    expected, expected_grads, _ = run(fn, numbers(count), "op", *columns)
    found, grads, events = run(fn, numbers(count), "graph", *columns)
    torch.testing.assert_close(found, expected)
    assert [leaf.requires_grad for leaf in found] == [leaf.requires_grad for leaf in expected]
    for mine, theirs in zip(grads, expected_grads, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            torch.testing.assert_close(mine, theirs)
    assert len(events) == launches, [(event.node.operation.name, event.rows) for event in events]


def chain(x):
    return torch.tanh(x @ weight) * x + torch.sin(x)


def test_equal_chains_are_one_launch():
    check(chain, launches=1)


def test_graphs_of_two_shapes_are_two_launches():
    def run_some(x, n):
        for _ in range(n):
            x = chain(x)
        return x

    check(run_some, [1, 2] * (COUNT // 2), launches=2)


def test_a_graph_that_no_other_instance_has_stays_as_it_is():
    def run_some(x, n):
        return chain(x) if n else (x * 2).sin()

    check(run_some, [1] * (COUNT - 1) + [0], launches=3)


def test_reads_in_between_are_one_launch_a_round():
    def run_rounds(x):
        for _ in range(3):
            x = chain(x)
            assert (x.sum() * 2 + 1).item() < 1e9
        return x

    check(run_rounds, launches=3)


def test_a_value_that_is_read_has_its_contents():
    def read(x):
        y = chain(x)
        before = (y.sum() * 3).item()
        assert before == pytest.approx(float(chain(x).detach().sum() * 3))
        return y.sin() if before > 0 else y.cos()

    rows = numbers()
    torch.testing.assert_close(run(read, rows, "graph")[0], [read(row) for row in rows])


def test_random_draws_are_those_of_single_steps():
    def drop(x):
        y = F.dropout(chain(x), 0.5)
        z = y * torch.rand_like(y)
        if z.sum().item() > 1e9:
            return z
        return z + torch.randn(4, dtype=torch.float64) * F.dropout(x, 0.3)

    check(drop, launches=2)


def test_instances_that_have_drawn_differently_before_still_run_together():
    def draw(x, n):
        for _ in range(n):
            x = F.dropout(x, 0.4)
        assert x.sum().item() < 1e9
        return F.dropout(x * 2, 0.4).sin() + x

    check(draw, [1, 3, 2, 1, 3, 2, 1, 3], launches=4)


def detached(x):
    y = torch.tanh(x @ weight)
    return y * y.detach() + y.detach().sum()


def without_gradients(x):
    y = torch.tanh(x @ weight)
    with torch.no_grad():
        z = (y @ weight).exp()
        first = torch.cat([y[:2], z[2:]])
    return y * z + first, z


def own_leaf(x):
    y = torch.tanh(x).detach().requires_grad_()
    return (y * x).sum() + (y @ weight).sum()


def weight_without_gradients(x):
    return x @ weight.detach() + x @ weight


def views(x):
    y = (x * 2).view(2, 2)
    first, second = y
    return torch.stack([second, first]).t() @ y.t(), y.unbind()[1]


def in_place(x):
    y = x * 1.5
    y += 2
    y[1] = y[0] * 3
    y.view(2, 2)[0].mul_(0.5)
    return y.relu_() + x


def copies(x):
    y = (x * 2).view(2, 2)
    z = torch.cat([y, y.sin(), y[1:]])
    return z, torch.stack([z, z * 2])[1].sum()


def several_results(x):
    values, places = torch.sort(x * 2)
    first, _ = torch.broadcast_tensors(x[:1], values)
    return values * first, places


def kept_values(x):
    y = x.sin()
    z = y * 2
    return y, z, (z @ weight).sum()


def only_aliases(x):
    return x.view(4, 1)[1], x[0]


def transposed_again(x):
    y = x.view(2, 2).t()
    assert (y * 2).sum().item() < 1e9
    return y.t().view(4) * 2 + y.t().reshape(4).sin()


PROGRAMS = {
    detached: 1,
    without_gradients: 1,
    own_leaf: 1,
    weight_without_gradients: 1,
    views: 1,
    in_place: 1,
    copies: 1,
    several_results: 1,
    kept_values: 1,
}


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_code_of_all_kinds_agrees_with_single_steps(fn):
    check(fn, launches=PROGRAMS[fn])


@pytest.mark.parametrize("fn", [only_aliases, transposed_again], ids=lambda fn: fn.__name__)
def test_what_better_stays_single_steps_agrees_too(fn):
    expected, expected_grads, _ = run(fn, numbers(), "op")
    found, grads, _ = run(fn, numbers(), "graph")
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(grads[1:], expected_grads[1:])


def test_autocast_holds_for_the_calls_that_it_was_on_for():
    def cast(x):
        y = x.float() @ weight.float()
        with torch.autocast("cpu", torch.bfloat16):
            z = y @ weight.float()
        return z.float() * 2 + y

    expected, expected_grads, _ = run(cast, numbers(), "op")
    found, grads, events = run(cast, numbers(), "graph")
    torch.testing.assert_close(found, expected)
    # gradients of the weight are summed over rows before they leave bfloat16
    torch.testing.assert_close(grads, expected_grads, rtol=2e-2, atol=2e-2)
    assert len(events) == 1


def test_modules_are_part_of_the_graph():
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Dropout(0.3)).double()
    check(lambda x: layer(x * 2).sum() + layer(x).prod(), launches=1)


def test_a_tensor_that_escapes_has_its_value_afterwards():
    kept = []

    def escape(x):
        y = x * 3
        kept.append(y)
        return (y + 1).sin()

    rows = numbers()
    ps.map(escape, rows, granularity="graph")
    for row, y in zip(rows, kept, strict=True):
        torch.testing.assert_close(y + 0, row * 3)
    (grad,) = torch.autograd.grad((kept[2] ** 2).sum(), rows[2])
    torch.testing.assert_close(grad, 18 * rows[2].detach())


def test_what_only_one_instance_keeps_does_not_part_it_from_the_others():
    kept = []

    def keep(x, is_kept):
        y = x.sin()
        z = y * 2 + x
        if is_kept:
            kept.append(y)
        return z

    check(keep, [False] * (COUNT - 1) + [True], launches=1)
    torch.testing.assert_close(kept[-1] + 0, numbers()[-1].sin())


def test_values_of_other_instances_are_found():
    seen = []

    def pass_on(x):
        y = torch.tanh(x * 2)
        if seen:
            y = y + seen[-1]
        seen.append(y)
        return y.sin()

    def expected(rows):
        total = 0
        for row in rows:
            total = total + torch.tanh(row * 2)
            yield total.sin()

    rows = numbers()
    found = ps.map(pass_on, rows, granularity="graph")
    torch.testing.assert_close(found, list(expected(rows)))


def test_a_map_inside_agrees():
    def outer(xs):
        scale = xs.sum().sin()
        inner = ps.map(lambda x: torch.tanh(x * scale) * x, xs)
        return torch.stack(inner) * scale

    rows = numbers()
    expected, expected_grads, _ = run(outer, numbers(), "op")
    found, grads, _ = run(outer, rows, "graph")
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(grads[1:], expected_grads[1:])


def test_an_instance_that_fails_leaves_the_others_alone():
    def pick(x, index):
        return (x * 2)[torch.tensor([index])] + x

    torch.manual_seed(0)
    found = ps.map(pick, numbers(3), [1, 9, 2], granularity="graph", on_error="return")
    assert isinstance(found[1], IndexError)
    torch.testing.assert_close(found[0], pick(numbers(3)[0], 1))
    torch.testing.assert_close(found[2], pick(numbers(3)[2], 2))


def test_nothing_recorded_is_nothing_joined():
    empty = np.empty(0, np.int64)
    recorded = Recorded(empty, empty, empty, empty, empty, (), empty, empty)
    same, renaming = join_graphs(replace(recorded), 5)
    assert len(same.kinds) == 0
    assert renaming(np.array([1, 4])).tolist() == [1, 4]


def test_renaming_leaves_other_values_alone():
    renaming = Renaming(np.array([2, 5]), np.array([9, 8]))
    assert renaming(np.array([1, 2, 3, 5, 7])).tolist() == [1, 9, 3, 8, 7]
