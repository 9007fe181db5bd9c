"""A reinforcement-learning agent in a world of places in a row: acts, stores, samples, updates.

One step is written for one agent: choose an action by the table of values or by chance, let the
world answer, store what happened, draw stored steps, move the table towards them, and now and then
copy the table to the one that is hoped with. Chance comes in as numbers between 0 and 1, so that
every way to run it does the same.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

import penstock as ps

PLACES, ACTIONS = 8, 3
#: Stored steps, steps drawn for each update, and steps between two copies of the table.
MEMORY, DRAWN, SYNC = 64, 8, 10
RATE, DISCOUNT, CURIOSITY = 0.1, 0.95, 0.2
#: Numbers of chance that a step takes.
CHANCES = 3 + DRAWN


class State(NamedTuple):
    """What an agent takes from step to step."""

    place: Tensor
    values: Tensor
    hoped: Tensor
    #: For each stored step: place, action, reward, next place, and whether it was the last.
    stored: Tensor


def start(*rows: int) -> State:
    """An agent that knows nothing, or one for each row."""
    table = torch.zeros(*rows, PLACES, ACTIONS)
    place = torch.full(rows, PLACES // 2)
    return State(place, table, table, torch.zeros(*rows, MEMORY, 5))


def step(state: State, t: Tensor, chance: Tensor) -> State:
    """One step of one agent, or of each row."""
    best = state.values.gather(-2, _at(state.place)).squeeze(-2).argmax(-1)
    random = (chance[..., 1] * ACTIONS).long()
    action = torch.where(chance[..., 0] < CURIOSITY, random, best)
    there = (state.place + torch.where(action == 0, -1, action)).clamp(0, PLACES - 1)
    reward = torch.where(there == PLACES - 1, 1.0, torch.where(there == 0, -1.0, -0.02))
    is_over = (there == 0) | (there == PLACES - 1)
    lived = [state.place, action, reward, there, is_over]
    row = torch.stack([value.float() for value in lived], -1)
    here = (torch.arange(MEMORY) == t % MEMORY).unsqueeze(-1)
    stored = torch.where(here, row.unsqueeze(-2), state.stored)
    values = _updated(state, stored, t, chance[..., 3:])
    hoped = torch.where(t % SYNC == 0, values, state.hoped)
    again = (chance[..., 2] * (PLACES - 2)).long() + 1
    return State(torch.where(is_over, again, there), values, hoped, stored)


def _at(place: Tensor) -> Tensor:
    """A place as an index of rows of the table."""
    return place.unsqueeze(-1).unsqueeze(-1).expand(*place.shape, 1, ACTIONS)


def _updated(state: State, stored: Tensor, t: Tensor, chance: Tensor) -> Tensor:
    """The table after steps drawn by chance have been learned from."""
    known = torch.minimum(t + 1, torch.tensor(MEMORY))
    drawn = (chance * known).long().unsqueeze(-1).expand(*chance.shape, 5)
    place, action, reward, there, is_over = stored.gather(-2, drawn).unbind(-1)
    hope = state.hoped.gather(-2, there.long().unsqueeze(-1).expand(*there.shape, ACTIONS))
    aim = reward + DISCOUNT * hope.amax(-1) * (1 - is_over)
    flat = state.values.flatten(-2)
    where = (place * ACTIONS + action).long()
    moved = flat.scatter_add(-1, where, (aim - flat.gather(-1, where)) * RATE)
    return moved.reshape(state.values.shape)


@ps.function
def life(chances: Tensor) -> Any:
    """All steps of one agent: its table in the end."""
    state, t = start(), torch.tensor(0)
    for chance in chances:
        state = step(state, t, chance)
        t = t + 1
    return state.values


@ps.function
def one_step(state: State, t: Tensor, chance: Tensor) -> Any:
    """One step of one agent, for who drives it from outside."""
    return step(state, t, chance)
