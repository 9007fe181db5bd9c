"""Random operations give the same numbers in every way to run a program.

After `torch.manual_seed(k)` a call draws the same in a graph and in plain Python, and so does a
map, whatever the bounds of the planner and the shapes of the instances. What is drawn is different
for each instance, iteration, element, call and operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical, Exponential, Normal

import penstock as ps
from penstock.calls.structure import flatten
from penstock.data import Tree
from penstock.errors import ArgumentError
from tests.semantics.ways import tiny_lookahead


class Random(NamedTuple):
    """A program, and instances to run it on."""

    traced: Any
    instances: list[tuple[Any, ...]]
    weights: list[torch.Tensor]


WIDTH = 4


def rows(*lengths: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [
        torch.randn(length, WIDTH, generator=generator, dtype=torch.float64) for length in lengths
    ]


def vectors(count: int) -> list[torch.Tensor]:
    return list(rows(count)[0])


class TreeLSTM(nn.Module):
    """A Tree-LSTM with dropout on its embeddings and on the state of each cell."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, WIDTH, dtype=torch.float64)
        self.gates = nn.Linear(2 * WIDTH, 5 * WIDTH, dtype=torch.float64)
        self.dropout = nn.Dropout(0.4)

    @ps.function
    def forward(self, tree, i):
        return ps.cond(
            tree.is_leaf(i),
            lambda: (self.dropout(self.embedding(tree.token[i])), torch.zeros(WIDTH).double()),
            lambda: self.cell(self(tree, tree.left(i)), self(tree, tree.right(i))),
        )

    def cell(self, left, right):
        gates = self.gates(torch.cat([left[0], right[0]]))
        i, o, u, first, second = gates.chunk(5)
        c = i.sigmoid() * u.tanh() + first.sigmoid() * left[1] + second.sigmoid() * right[1]
        return self.dropout(o.sigmoid() * c.tanh()), c


def tree_lstm() -> Random:
    torch.manual_seed(1)
    module = TreeLSTM()
    trees = [Tree.from_nested(nested) for nested in (3, (1, 2), ((4, 5), (6, (7, 8))), (1, (2, 3)))]
    instances = [(tree, tree.root) for tree in trees]
    return Random(module.forward, instances, list(module.parameters()))


def loop() -> Random:
    @ps.function
    def program(x, n):
        def body(i, x):
            return i + 1, F.dropout(x + 1, 0.3) + torch.rand_like(x)

        return ps.while_loop(lambda i, x: i < n, body, (0, x))[1]

    return Random(program, list(zip(vectors(4), [3, 0, 5, 1], strict=True)), [])


def drawn_condition() -> Random:
    @ps.function
    def program(x):
        def body(i, x):
            return i + 1, x + torch.rand(WIDTH).double()

        i, x = ps.while_loop(lambda i, x: torch.rand(()) < 0.8, body, (0, x), maximum_iterations=20)
        return i, x + torch.rand(WIDTH).double()

    return Random(program, [(x,) for x in vectors(5)], [])


def branches() -> Random:
    @ps.function
    def program(x, n):
        before = torch.rand_like(x)
        odd = ps.cond(n % 2 == 1, lambda: x * torch.rand_like(x), lambda: x + torch.rand_like(x))
        other = [
            lambda x: F.dropout(x, 0.5),
            lambda x: x,
            lambda x: F.dropout(F.dropout(x, 0.5), 0.5),
        ]
        return before, odd, ps.switch(n % 3, other, (x,)), torch.rand_like(x)

    return Random(program, list(zip(vectors(6), range(6), strict=True)), [])


def decided_branches() -> Random:
    """Branches on what is known while tracing: sizes, Python values."""

    @ps.function
    def program(xs):
        noise = ps.cond(xs.shape[0] > 2, lambda: torch.rand(2), lambda: torch.rand(3).sum()[None])
        first = ps.cond(True, lambda: torch.rand(2) + torch.rand(2), lambda: torch.rand(2))
        second = ps.switch(1, [lambda: torch.rand(1), lambda: helper(xs.sum()), lambda: xs[0]])
        return noise.sum(), first, second, torch.rand(2)

    return Random(program, [(x,) for x in rows(3, 3)], [])


@ps.function
def helper(x):
    return x + torch.rand_like(x)


@ps.function
def counted(x, n):
    return ps.cond(
        n > 0, lambda: counted(x, n - 1) + counted(x, n - 2) + torch.rand_like(x), lambda: helper(x)
    )


def recursion() -> Random:
    return Random(counted, list(zip(vectors(5), [4, 0, 2, 3, 1], strict=True)), [])


def scan() -> Random:
    cell = nn.GRUCell(WIDTH, WIDTH, dtype=torch.float64)

    @ps.function
    def program(xs):
        def step(h, x):
            h = cell(F.dropout(x, 0.5)[None], h[None])[0]
            return h, F.dropout(h, 0.2)

        return ps.scan(step, torch.zeros(WIDTH, dtype=torch.float64), xs, reverse=True)

    return Random(program, [(xs,) for xs in rows(3, 1, 5, 2)], list(cell.parameters()))


def folds() -> Random:
    @ps.function
    def program(xs):
        def step(acc, x):
            return acc + F.dropout(x, 0.5)

        zero = torch.zeros(WIDTH, dtype=torch.float64)
        return ps.foldl(step, xs, zero), ps.foldr(step, xs, zero)

    return Random(program, [(xs,) for xs in rows(3, 1, 5, 0)], [])


def elements() -> Random:
    @ps.function
    def program(xs):
        return ps.map_fn(lambda x: F.dropout(x, 0.5) + torch.rand_like(x), xs), torch.rand(1)

    return Random(program, [(xs,) for xs in rows(3, 1, 0, 2)], [])


def elements_of_arrays() -> Random:
    """`map_fn` over a TensorArray is a loop in the graph."""

    @ps.function
    def program(xs):
        array = ps.TensorArray.unstack(xs)
        return ps.map_fn(lambda x: F.dropout(x, 0.5) + torch.rand_like(x), array)

    return Random(program, [(xs,) for xs in rows(3, 1, 2)], [])


def shapes() -> Random:
    """Instances that no one program can serve: with one dimension and with two."""

    @ps.function
    def program(x):
        return F.dropout(x, 0.5) + torch.rand_like(x)

    return Random(program, [(x,) for x in (*rows(2), *vectors(2), *rows(1), *vectors(1))], [])


def nested() -> Random:
    @ps.function
    def program(xs, n):
        def outer(i, total):
            inner = ps.map_fn(lambda x: ps.cond(i % 2 == 0, lambda: helper(x), lambda: x), xs)
            return i + 1, total + F.dropout(inner.sum(0), 0.5)

        return ps.while_loop(lambda i, total: i < n, outer, (0, xs.sum(0)))[1]

    return Random(program, list(zip(rows(2, 1, 3), [2, 4, 1], strict=True)), [])


PROGRAMS: dict[str, Callable[[], Random]] = {
    made.__name__: made
    for made in (
        tree_lstm,
        loop,
        drawn_condition,
        branches,
        decided_branches,
        recursion,
        scan,
        folds,
        elements,
        elements_of_arrays,
        shapes,
        nested,
    )
}


def map_all(case: Random) -> list[Any]:
    columns = [list(column) for column in zip(*case.instances, strict=True)]
    return case.traced.map(*columns)


@contextmanager
def seeded(number: int, around: Any = None) -> Iterator[None]:
    torch.manual_seed(number)
    with around or nullcontext():
        yield


def assert_same(actual: Any, expected: Any) -> None:
    left, right = flatten(actual)[0], flatten(expected)[0]
    for one, other in zip(left, right, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_draws_the_same_in_a_graph_and_in_plain_python(name):
    case = PROGRAMS[name]()
    for number, instance in enumerate(case.instances):
        with seeded(number):
            expected = case.traced(*instance)
            after = torch.get_rng_state()
        with seeded(number, ps.set_eager(True)):
            assert_same(case.traced(*instance), expected)
            assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_map_draws_the_same_in_every_way(name):
    case = PROGRAMS[name]()
    with seeded(7):
        expected = map_all(case)
        after = torch.get_rng_state()
    for around in (tiny_lookahead(), torch.no_grad(), ps.set_eager(True)):
        with seeded(7, around):
            assert_same(map_all(case), expected)
            assert torch.equal(torch.get_rng_state(), after)
    with seeded(8):
        pairs = zip(flatten(map_all(case))[0], flatten(expected)[0], strict=True)
        assert not all(torch.equal(one, other) for one, other in pairs)


@pytest.mark.parametrize("name", PROGRAMS)
def test_an_instance_of_a_map_does_not_depend_on_those_after_it(name):
    case = PROGRAMS[name]()
    with seeded(7):
        expected = map_all(case)[:2]
    with seeded(7):
        assert_same(map_all(case._replace(instances=case.instances[:2])), expected)


DRAWS = {
    "rand": lambda x: torch.rand(2, 3),
    "rand of a size": lambda x: torch.rand((2, 3), dtype=torch.float64),
    "randn": lambda x: torch.randn(2, 3),
    "rand_like": lambda x: torch.rand_like(x),
    "randn_like": lambda x: torch.randn_like(x, dtype=torch.float32),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()),
    "bernoulli with p": lambda x: torch.bernoulli(x, 0.3),
    "randint": lambda x: torch.randint(2, 50, (4,)),
    "randint from zero": lambda x: torch.randint(50, (4,), dtype=torch.int32),
    "normal": lambda x: torch.normal(x, 2.0),
    "normal of a size": lambda x: torch.normal(1.0, 2.0, (3,)),
    "normal of two shapes": lambda x: torch.normal(x[:, :1], x.abs()),
    "multinomial": lambda x: torch.multinomial(x.abs() + 0.1, 2),
    "multinomial with replacement": lambda x: torch.multinomial(x.abs() + 0.1, 3, replacement=True),
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout, all": lambda x: F.dropout(x, 1.0) + F.dropout(x),
    "dropout, in place": lambda x: F.dropout(x + 1, 0.3, inplace=True),
    "torch.dropout": lambda x: torch.dropout(x, 0.5, True),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=0.5),
    "masked attention": lambda x: F.scaled_dot_product_attention(
        x, x, x, attn_mask=torch.ones(3, 3, dtype=torch.bool).tril(), dropout_p=0.5
    ),
    "normal_": lambda x: torch.empty_like(x).normal_(1.0, std=2.0),
    "uniform_": lambda x: torch.empty(3, dtype=torch.float32).uniform_(-1, to=2),
    "exponential_": lambda x: torch.empty_like(x).exponential_(lambd=2.0),
    "bernoulli_": lambda x: torch.empty(40, dtype=torch.int64).bernoulli_(0.4),
    "gumbel softmax": lambda x: F.gumbel_softmax(x, hard=True) + F.gumbel_softmax(x),
    "a normal distribution": lambda x: Normal(x, x.abs() + 1).rsample(),
    "an exponential distribution": lambda x: Exponential(x.abs() + 1).rsample(),
    "a categorical distribution": lambda x: Categorical(logits=x).sample((20,)),
    "multi-head attention": lambda x: ATTENTION(x, x, x)[0],
    "encoder layer": lambda x: ENCODER(x),
}

ATTENTION = nn.MultiheadAttention(4, 2, dropout=0.5, dtype=torch.float64)
ENCODER = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, dtype=torch.float64)


@pytest.mark.parametrize("name", DRAWS)
def test_every_random_function_draws_the_same_in_a_graph_and_in_plain_python(name):
    @ps.function
    def program(x):
        return DRAWS[name](x), DRAWS[name](x)

    (x,) = rows(3)
    with seeded(3):
        expected = program(x)
    with seeded(3, ps.set_eager(True)):
        found = program(x)
    plain = DRAWS[name](x)
    assert (found[0].shape, found[0].dtype) == (plain.shape, plain.dtype)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
        if "normal" not in name and "randn" not in name and "attention" not in name:
            assert torch.equal(one, other) or name == "encoder layer"
    assert not torch.equal(*found) or "multinomial" in name or name == "bernoulli"


def test_draws_differ_between_instances_iterations_elements_calls_and_sites():
    @ps.function
    def program(xs, n):
        def body(i, array):
            return i + 1, array.write(i, torch.rand(3) + helper(torch.zeros(3)))

        looped = ps.while_loop(lambda i, a: i < n, body, (0, ps.TensorArray(n)))[1].stack()
        mapped = ps.map_fn(lambda x: x + torch.rand(3), xs)
        called = [helper(torch.zeros(3)) for _ in range(2)]
        return torch.cat([looped, mapped, torch.stack([*called, torch.rand(3), torch.rand(3)])])

    with seeded(0):
        found = torch.cat(program.map([torch.zeros(2, 3)] * 4, [2] * 4))
    assert found.shape == (4 * 8, 3)
    assert len(found.unique()) == found.numel()


def test_two_calls_draw_different_numbers():
    with seeded(0):
        assert not torch.equal(helper(torch.zeros(3)), helper(torch.zeros(3)))
    with seeded(0, ps.set_eager(True)):
        assert not torch.equal(helper(torch.zeros(3)), helper(torch.zeros(3)))


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_dropout_respects_its_probability(p):
    @ps.function
    def program(xs):
        return ps.map_fn(lambda x: F.dropout(x, p), xs)

    for around in (nullcontext(), ps.set_eager(True)):
        with seeded(0, around):
            found = torch.stack(program.map([torch.ones(20, 50)] * 10))
            assert abs(float((found == 0).double().mean()) - p) < 0.02
            assert found.unique().tolist() == pytest.approx([0, 1 / (1 - p)])


@pytest.mark.parametrize("name", ["tree_lstm", "loop", "recursion", "scan", "elements", "nested"])
def test_gradients_flow_through_the_masks_that_were_drawn(name):
    case = PROGRAMS[name]()
    given = [leaf for leaf in flatten(case.instances)[0] if isinstance(leaf, torch.Tensor)]
    inputs = [leaf.requires_grad_() for leaf in given if leaf.is_floating_point() and leaf.numel()]
    targets = [*case.weights, *inputs]
    assert targets

    def gradients(around: Any) -> Any:
        with seeded(9, around):
            leaves = flatten(map_all(case))[0]
        weights = torch.Generator().manual_seed(2)
        scaled = [leaf * torch.randn(leaf.shape, generator=weights) for leaf in leaves]
        total = sum(leaf.sum() for leaf in scaled)
        first = torch.autograd.grad(total, targets, create_graph=True, allow_unused=True)
        square = sum((g * g).sum() for g in first if g is not None)
        if not square.requires_grad:
            return first, ()
        return first, torch.autograd.grad(square, targets, allow_unused=True)

    expected = gradients(ps.set_eager(True))
    for around in (None, tiny_lookahead()):
        for found, wanted in zip(gradients(around), expected, strict=True):
            for one, other in zip(found, wanted, strict=True):
                if other is None:
                    assert one is None or not one.any()
                else:
                    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


def test_double_backward_sees_the_mask_of_the_forward_pass():
    @ps.function
    def program(x):
        return F.dropout(x**3, 0.5)

    x = torch.full((50,), 2.0, dtype=torch.float64, requires_grad=True)
    y = program(x)
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    mask = y.detach() / 8
    assert mask.unique().tolist() == [0, 2]
    torch.testing.assert_close(first.detach(), 12 * mask)
    torch.testing.assert_close(second, 12 * mask)


def test_in_eval_mode_nothing_is_drawn():
    case = tree_lstm()
    module = case.traced._instance
    module.eval()
    results = []
    for around in (nullcontext(), ps.set_eager(True)):
        with seeded(4, around):
            before = torch.get_rng_state()
            results += [map_all(case), [case.traced(*one) for one in case.instances]]
            assert torch.equal(torch.get_rng_state(), before)
    for found in results[1:]:
        assert_same(found, results[0])
    module.train()
    with seeded(4):
        assert not torch.equal(map_all(case)[2][0], results[0][2][0])


def test_what_does_not_run_draws_nothing():
    @ps.function
    def program(x, n):
        return ps.cond(n > 0, lambda: F.dropout(x, 0.5), lambda: x)

    for around in (nullcontext(), ps.set_eager(True)):
        with seeded(4, around):
            before = torch.get_rng_state()
            program(torch.ones(3), 0)
            assert torch.equal(torch.get_rng_state(), before)
            program(torch.ones(3), 1)
            assert not torch.equal(torch.get_rng_state(), before)


def test_only_programs_draw_under_keys():
    with seeded(4):
        expected = torch.rand(3)
    with seeded(4, ps.set_eager(True)):
        assert torch.equal(ps.cond(True, lambda: torch.rand(3), lambda: torch.zeros(3)), expected)


def test_a_random_function_with_a_generator_is_refused_in_every_way():
    @ps.function
    def program(x):
        return x + torch.rand(3, generator=torch.Generator())

    for around in (nullcontext(), ps.set_eager(True)):
        with around, pytest.raises(ArgumentError, match="rand with a generator: this random"):
            program(torch.ones(3))


def test_random_functions_without_keys_run_where_they_do_not_draw():
    layers = nn.Sequential(nn.Dropout2d(0.5), nn.AlphaDropout(0.5)).eval()

    @ps.function
    def program(x):
        return layers(x)

    x = rows(2)[0].reshape(1, 2, 2, 2)
    assert_same(program(x), layers(x))
    layers.train()
    for around in (nullcontext(), ps.set_eager(True)):
        with around, pytest.raises(ArgumentError, match="dropout2d: this random operation"):
            program(x)
