"""Numerical iteration until the data says stop: each instance needs its own number of steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

import penstock as ps
from tests.semantics.table import Case, Maker, table_program


@table_program(torch.float32, torch.float64)
def newton(make: Maker) -> Case:
    """Square roots by Newton's iteration until the residual is small."""

    def plain(a: Tensor) -> tuple[Tensor, Any]:
        x, steps = a, 0
        while (x * x - a).abs() > 1e-3 * a:
            x, steps = (x + a / x) / 2, steps + 1
        return x, steps

    @ps.function
    def traced(a: Tensor) -> tuple[Tensor, Any]:
        return ps.while_loop(
            lambda x, steps: (x * x - a).abs() > 1e-3 * a,
            lambda x, steps: ((x + a / x) / 2, steps + 1),
            (a, 0),
        )

    values = (1.0, 2.0, 0.3, 50.0, 7000.0, 2.5e-3, 9.0)
    return Case(plain, traced, [(make.tensor(a),) for a in values])


@table_program(torch.float32, torch.float64)
def fixed_point(make: Maker) -> Case:
    """A layer applied to its own output until that hardly changes; two states change places."""
    w = make.weight("w", 20, 20, scale=0.12)

    def plain(x: Tensor, limit: Tensor) -> tuple[Tensor, Any]:
        before, steps = torch.zeros_like(x), 0
        while (x - before).abs().amax() > limit:
            x, before, steps = torch.tanh(x @ w + 0.1), x, steps + 1
        return x + before, steps

    @ps.function
    def traced(x: Tensor, limit: Tensor) -> tuple[Tensor, Any]:
        x, before, steps = ps.while_loop(
            lambda x, before, steps: (x - before).abs().amax() > limit,
            lambda x, before, steps: (torch.tanh(x @ w + 0.1), x, steps + 1),
            (x, torch.zeros_like(x), 0),
        )
        return x + before, steps

    limits = (0.5, 0.02, 1e-3, 9.0, 0.07, 0.004)
    instances = [(make.normal(20), torch.tensor(k, dtype=make.dtype)) for k in limits]
    return Case(plain, traced, instances)


class Bracket(NamedTuple):
    """An interval in which a function changes its sign."""

    low: Tensor
    high: Tensor


@table_program(torch.float64, differentiable=False)
def bisection(make: Maker) -> Case:
    """The root of a cubic by bisection; the state is a NamedTuple."""

    def value(a: Tensor, x: Tensor) -> Tensor:
        return x * x * x + x - a

    def plain(a: Tensor, width: Tensor) -> Bracket:
        low, high = -1 - a.abs(), 1 + a.abs()
        while high - low > width:
            middle = (low + high) / 2
            low, high = (middle, high) if value(a, middle) < 0 else (low, middle)
        return Bracket(low, high)

    @ps.function
    def traced(a: Tensor, width: Tensor) -> Bracket:
        def halve(bracket: Bracket) -> Bracket:
            middle = (bracket.low + bracket.high) / 2
            return ps.cond(
                value(a, middle) < 0,
                lambda: Bracket(middle, bracket.high),
                lambda: Bracket(bracket.low, middle),
            )

        start = Bracket(-1 - a.abs(), 1 + a.abs())
        return ps.while_loop(lambda bracket: bracket.high - bracket.low > width, halve, start)

    widths = (0.5, 1e-3, 0.07, 9.0, 1e-5, 0.3)
    return Case(
        plain,
        traced,
        [(make.normal(scale=3.0), make.tensor(w)) for w in widths],
    )


@dataclass(frozen=True)
class Flow:
    """Where an adaptive integration stands."""

    time: Tensor
    step: Tensor
    y: Tensor
    tried: Any


@table_program(torch.float64)
def adaptive_step_ode(make: Maker) -> Case:
    """Heun's method with a step that follows its error estimate; the state is a dataclass."""
    weight = make.weight("weight", 2, 2)

    def slope(y: Tensor) -> Tensor:
        return torch.tanh(y @ weight) - y.flip(0)

    def attempt(flow: Any) -> tuple[Tensor, Tensor]:
        first = slope(flow.y)
        second = slope(flow.y + flow.step * first)
        error = (flow.step * (second - first)).abs().max() / 2
        return flow.y + flow.step * (first + second) / 2, error

    def accepted(flow: Any, y: Tensor) -> Flow:
        return Flow(flow.time + flow.step, flow.step * 1.3, y, flow.tried + 1)

    def refused(flow: Any) -> Flow:
        return Flow(flow.time, flow.step * 0.5, flow.y, flow.tried + 1)

    def plain(y: Tensor, end: Tensor) -> Flow:
        flow = Flow(torch.zeros_like(end), torch.full_like(end, 0.4), y, 0)
        while flow.time < end:
            y, error = attempt(flow)
            flow = accepted(flow, y) if error < 0.05 else refused(flow)
        return flow

    @ps.function
    def traced(y: Tensor, end: Tensor) -> Flow:
        def body(flow: Flow) -> Flow:
            y, error = attempt(flow)
            return ps.cond(error < 0.05, lambda: accepted(flow, y), lambda: refused(flow))

        start = Flow(torch.zeros_like(end), torch.full_like(end, 0.4), y, 0)
        return ps.while_loop(lambda flow: flow.time < end, body, start)

    ends = (0.05, 1.0, 2.0, 0.0, 3.1, 1.7)
    return Case(plain, traced, [(make.normal(2), make.tensor(e)) for e in ends])


@table_program(torch.float64)
def adaptive_computation(make: Maker) -> Case:
    """Pondering until the halting probabilities add up; the last step gets the remainder."""
    weight, halt = make.weight("weight", 3, 3), make.weight("halt", 3)

    def ponder(h: Tensor) -> tuple[Tensor, Tensor]:
        h = torch.tanh(h @ weight) + h
        return h, torch.sigmoid(h @ halt - 1)

    def plain(h: Tensor) -> dict[str, Any]:
        spent, output, steps = h.new_zeros(()), torch.zeros_like(h), 0
        while spent < 0.95 and steps < 8:
            h, probability = ponder(h)
            share = 1 - spent if spent + probability > 0.95 else probability
            spent, output, steps = spent + share, output + share * h, steps + 1
        return {"h": h, "spent": spent, "output": output, "steps": steps}

    @ps.function
    def traced(h: Tensor) -> dict[str, Any]:
        def body(state: Any) -> dict[str, Any]:
            spent = state["spent"]
            h, probability = ponder(state["h"])
            share = ps.cond(spent + probability > 0.95, lambda: 1 - spent, lambda: probability)
            output = state["output"] + share * h
            return {"h": h, "spent": spent + share, "output": output, "steps": state["steps"] + 1}

        start = {"h": h, "spent": h.new_zeros(()), "output": torch.zeros_like(h), "steps": 0}
        return ps.while_loop(lambda state: state["spent"] < 0.95, body, start, maximum_iterations=8)

    return Case(plain, traced, [(make.normal(3, scale=2.0),) for _ in range(7)])


@table_program(torch.float64)
def early_exit(make: Maker) -> Case:
    """A stack of layers that is left as soon as one of them is confident."""
    layers = [make.weight(f"layer{k}", 4, 4, scale=1.0) for k in range(4)]

    def confidence(x: Tensor) -> Tensor:
        return torch.softmax(x, 0).max()

    def plain(x: Tensor) -> tuple[Tensor, Any]:
        for depth, layer in enumerate(layers):
            x = torch.sin(x @ layer) + x
            if confidence(x) > 0.6:
                return x, depth
        return x, len(layers)

    @ps.function
    def traced(x: Tensor) -> tuple[Tensor, Any]:
        def run_from(depth: int, x: Tensor) -> tuple[Tensor, Any]:
            if depth == len(layers):
                return x, depth
            x = torch.sin(x @ layers[depth]) + x
            return ps.cond(confidence(x) > 0.6, lambda: (x, depth), lambda: run_from(depth + 1, x))

        return run_from(0, x)

    return Case(plain, traced, [(make.normal(4, scale=0.7),) for _ in range(8)])
