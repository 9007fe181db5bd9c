"""Sequences of different lengths: LSTMs three ways, attention, folds, scans and `map_fn`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import penstock as ps
from tests.semantics.programs.cells import LSTM, LSTMState
from tests.semantics.table import Case, Maker, table_program

INPUTS, HIDDEN = 3, 4
LENGTHS = (3, 1, 0, 5, 5, 2, 7)


def plain_lstm(cell: LSTM, xs: Tensor) -> tuple[LSTMState, Tensor]:
    """The last state, and the hidden vectors of all steps."""
    state, outputs = cell.start(), []
    for x in xs:
        state = cell.step(state, x)
        outputs.append(state.h)
    return state, torch.stack(outputs) if outputs else xs.new_zeros(0, cell.hidden)


def sequences(make: Maker) -> list[tuple[Any, ...]]:
    """Instances that are one sequence each."""
    return [(make.normal(length, INPUTS),) for length in LENGTHS]


@table_program(torch.float32, torch.float64, torch.bfloat16)
def lstm_by_scan(make: Maker) -> Case:
    """An LSTM as a scan whose state is a NamedTuple."""
    cell = LSTM(make, INPUTS, HIDDEN)

    @ps.function
    def traced(xs: Tensor) -> tuple[LSTMState, Tensor]:
        def combine(state: LSTMState, x: Tensor) -> tuple[LSTMState, Tensor]:
            state = cell.step(state, x)
            return state, state.h

        return ps.scan(combine, cell.start(), xs)

    return Case(lambda xs: plain_lstm(cell, xs), traced, sequences(make))


@table_program(torch.float64)
def lstm_by_while_loop(make: Maker) -> Case:
    """The last state of an LSTM by a loop over positions."""
    cell = LSTM(make, INPUTS, HIDDEN)

    @ps.function
    def traced(xs: Tensor) -> LSTMState:
        _, state = ps.while_loop(
            lambda t, state: t < xs.shape[0],
            lambda t, state: (t + 1, cell.step(state, xs[t])),
            (0, cell.start()),
        )
        return state

    return Case(lambda xs: plain_lstm(cell, xs)[0], traced, sequences(make))


@table_program(torch.float32, torch.float64)
def lstm_by_tensor_array(make: Maker) -> Case:
    """An LSTM that reads its inputs from one TensorArray and writes its outputs to another."""
    cell = LSTM(make, INPUTS, HIDDEN)

    @ps.function
    def traced(xs: Tensor) -> tuple[LSTMState, Tensor]:
        inputs = ps.TensorArray.unstack(xs)
        start = cell.start()

        def body(t: Tensor, state: LSTMState, outputs: Any) -> tuple[Any, ...]:
            state = cell.step(state, inputs.read(t))
            return t + 1, state, outputs.write(t, state.h)

        outputs = ps.TensorArray(xs.shape[0], like=start.h)
        _, state, outputs = ps.while_loop(
            lambda t, state, outputs: t < inputs.size(), body, (0, start, outputs)
        )
        return state, outputs.stack()

    return Case(lambda xs: plain_lstm(cell, xs), traced, sequences(make))


@table_program(torch.float64)
def attention_decoder(make: Maker) -> Case:
    """An encoder over a source of any length, and a decoder that attends to all of it each step."""
    encoder = LSTM(make, INPUTS, HIDDEN)
    query = make.weight("query", HIDDEN, HIDDEN)
    mix = make.weight("mix", 2 * HIDDEN, HIDDEN)

    def decode(memory: Tensor, h: Tensor) -> Tensor:
        context = torch.softmax(memory @ (h @ query), 0) @ memory
        return torch.tanh(torch.cat([h, context]) @ mix)

    def plain(source: Tensor, steps: int) -> Tensor:
        state, memory = plain_lstm(encoder, source)
        h, outputs = state.h, []
        for _ in range(steps):
            h = decode(memory, h)
            outputs.append(h)
        return torch.stack(outputs)

    @ps.function
    def traced(source: Tensor, steps: Any) -> Tensor:
        def encode(state: LSTMState, x: Tensor) -> tuple[LSTMState, Tensor]:
            state = encoder.step(state, x)
            return state, state.h

        state, memory = ps.scan(encode, encoder.start(), source)

        def body(t: Tensor, h: Tensor, outputs: Any) -> tuple[Any, ...]:
            h = decode(memory, h)
            return t + 1, h, outputs.write(t, h)

        start = (0, state.h, ps.TensorArray(steps, like=state.h))
        return ps.while_loop(lambda t, *_: t < steps, body, start)[2].stack()

    sizes = [(3, 2), (1, 4), (5, 1), (5, 3), (2, 2), (6, 5)]
    return Case(plain, traced, [(make.normal(length, INPUTS), n) for length, n in sizes])


@table_program(torch.float32, torch.float64, torch.bfloat16)
def discounted_returns(make: Maker) -> Case:
    """A scan from the end over a dict of rewards and flags."""

    def step(total: Tensor, x: Any) -> tuple[Tensor, dict[str, Tensor]]:
        total = torch.where(x["last"], x["reward"], x["reward"] + 0.5 * total)
        return total, {"return": total, "was_last": x["last"]}

    def plain(rewards: Any) -> tuple[Tensor, dict[str, Tensor]]:
        total, results = rewards["reward"].new_zeros(()), []
        for k in reversed(range(len(rewards["last"]))):
            total, result = step(total, {key: values[k] for key, values in rewards.items()})
            results.append(result)
        if not results:
            return total, {"return": rewards["reward"], "was_last": rewards["last"]}
        keys = ("return", "was_last")
        return total, {key: torch.stack([r[key] for r in results]).flip(0) for key in keys}

    @ps.function
    def traced(rewards: Any) -> tuple[Tensor, dict[str, Tensor]]:
        return ps.scan(step, rewards["reward"].new_zeros(()), rewards, reverse=True)

    def episode(length: int) -> tuple[Any, ...]:
        return ({"reward": make.normal(length), "last": make.flags(length)},)

    return Case(plain, traced, [episode(length) for length in LENGTHS])


@table_program(torch.float64, torch.int64, differentiable=False)
def horner_both_ways(make: Maker) -> Case:
    """A polynomial and its mirror image by folds from both ends."""

    def plain(coefficients: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        forward = backward = torch.zeros_like(x)
        for a in coefficients:
            forward = forward * x + a
        for a in reversed(coefficients.unbind(0)):
            backward = backward * x + a
        return forward, backward

    @ps.function
    def traced(coefficients: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        def step(total: Tensor, a: Tensor) -> Tensor:
            return total * x + a

        zero = torch.zeros_like(x)
        return ps.foldl(step, coefficients, zero), ps.foldr(step, coefficients, zero)

    def numbers(*shape: int) -> Tensor:
        return make.integers(-4, 5, *shape).to(make.dtype)

    return Case(plain, traced, [(numbers(length), numbers()) for length in LENGTHS])


@table_program(torch.float32, torch.float64)
def map_over_sequences(make: Maker) -> Case:
    """One layer applied to every element of sequences of different lengths."""
    weight = make.weight("weight", INPUTS, 2)

    def element(x: Tensor) -> dict[str, Tensor]:
        y = torch.tanh(x @ weight)
        return {"y": y, "positive": y > 0}

    def plain(xs: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        results = [element(x) for x in xs]
        ys = torch.stack([r["y"] for r in results]) if results else xs.new_zeros(0, 2)
        positive = torch.stack([r["positive"] for r in results]) if results else ys > 0
        return {"y": ys, "positive": positive}, ys.sum(0)

    @ps.function
    def traced(xs: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        result = ps.map_fn(element, xs)
        return result, result["y"].sum(0)

    return Case(plain, traced, sequences(make))


@table_program(torch.float64)
def map_with_control_flow(make: Maker) -> Case:
    """`map_fn` over two sequences at once, with a loop and a branch for each element."""
    scale = make.weight("scale")

    def grow(x: Tensor) -> Tensor:
        return x * 1.5 + 0.1 * scale

    def plain_element(x: Tensor, negate: Tensor) -> Tensor:
        while x < 3:
            x = grow(x)
        return -x if negate else x * scale

    def plain(xs: Tensor, negate: Tensor) -> Tensor:
        results = [plain_element(x, flag) for x, flag in zip(xs, negate, strict=True)]
        return torch.stack(results) if results else xs

    @ps.function
    def traced(xs: Tensor, negate: Tensor) -> Tensor:
        def element(pair: Any) -> Tensor:
            x = ps.while_loop(lambda x: x < 3, grow, pair["x"])
            return ps.cond(pair["negate"], lambda: -x, lambda: x * scale)

        return ps.map_fn(element, {"x": xs, "negate": negate})

    instances = [(make.uniform(0.6, 4.0, n), make.flags(n)) for n in LENGTHS]
    return Case(plain, traced, instances)


@table_program(torch.float64)
def map_with_calls(make: Maker) -> Case:
    """A call in every element's own row, whose argument may be there before the row's turn."""

    def plain(x: Tensor) -> Tensor:
        return torch.stack([row.sin() + row + row.cos() for row in x]) if len(x) else x

    @ps.function
    def waves(row: Tensor) -> Tensor:
        return row + row.cos()

    @ps.function
    def traced(x: Tensor) -> Tensor:
        return ps.map_fn(lambda row: row.sin() + waves(row), x)

    return Case(plain, traced, [(make.normal(n, 2),) for n in (3, 1, 0, 2, 5, 3)])


@table_program(torch.float64)
def state_that_begins_as_a_sequence(make: Maker) -> Case:
    """A vector that is also read element by element, replaced by vectors that are not."""
    weight = make.weight("weight", INPUTS, INPUTS)

    def plain(rows: Tensor, start: Tensor, steps: int) -> tuple[Tensor, Tensor]:
        state, total = start, start.sum() * 0
        for k in range(steps):
            total = total + start[k] * state.sum()
            state = torch.tanh(rows[k] @ weight)
        return state, total

    @ps.function
    def traced(rows: Tensor, start: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        def step(k: Tensor, state: Tensor, total: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return k + 1, torch.tanh(rows[k] @ weight), total + start[k] * state.sum()

        _, state, total = ps.while_loop(
            lambda k, state, total: k < steps, step, (0, start, start.sum() * 0)
        )
        return state, total

    sizes = [(4, 2), (3, 0), (5, 3), (3, 1), (4, 3), (6, 2)]
    instances = [(make.normal(n, INPUTS), make.normal(INPUTS), k) for n, k in sizes]
    return Case(plain, traced, instances)
