"""A deep Q-learning agent whose choices and world are one program.

An episode is a loop of the program: choose an action, at random or by the network, let the world
answer, stop at a goal or in a pit. Many episodes run at once, each as long as it takes.
"""

from __future__ import annotations

import argparse
import copy

import torch
from torch import nn
from torch.nn import functional as F

import penstock as ps

#: Places in a row: a pit at 0, a goal at LAST. Actions: left, right, jump two to the right.
LAST, LIMIT = 7, 20


def world(place, action):
    """Where an action leads, what it yields, and whether the episode is over."""
    slips = torch.rand(()) < 0.1
    move = ps.switch(action, [lambda: -1, lambda: 1, lambda: torch.where(slips, -2, 2)])
    place = (place + move).clamp(0, LAST)
    reward = torch.where(place == LAST, 1.0, torch.where(place == 0, -1.0, -0.02))
    return place, reward, (place == 0) | (place == LAST)


class Agent(nn.Module):
    """A network for the value of each action, and the episodes it lives through."""

    def __init__(self, size=24):
        super().__init__()
        self.network = nn.Sequential(nn.Embedding(LAST + 1, size), nn.Tanh(), nn.Linear(size, 3))

    @ps.function
    def choose(self, place, curiosity):
        if torch.rand(()) < curiosity:
            return torch.randint(3, ())
        return self.network(place).argmax()

    @ps.function
    def episode(self, place, curiosity):
        """All steps: places, actions, rewards, next places, ends."""
        places, actions, rewards, nexts, ends = [], [], [], [], []
        is_over = False
        while not is_over and len(places) < LIMIT:
            action = self.choose(place, curiosity)
            there, reward, is_over = world(place, action)
            places.append(place)
            actions.append(action)
            rewards.append(reward)
            nexts.append(there)
            ends.append(is_over)
            place = there
        return tuple(torch.stack(column) for column in (places, actions, rewards, nexts, ends))

    def values(self, places, actions):
        return self.network(places).gather(1, actions[:, None]).squeeze(1)


def learn(agent, target, optimizer, memory, steps=40, batch=64):
    """Steps towards reward plus what the older network hopes for after it."""
    for _ in range(steps):
        chosen = torch.randint(len(memory[0]), (batch,))
        places, actions, rewards, nexts, ends = (column[chosen] for column in memory)
        with torch.no_grad():
            hope = target.network(nexts).max(1).values
        loss = F.smooth_l1_loss(agent.values(places, actions), rewards + 0.95 * hope * ~ends)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12, help="of 32 episodes (default 12)")
    options = parser.parse_args()
    torch.manual_seed(0)
    agent = Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=0.01)
    memory = None
    for number in range(options.rounds):
        target = copy.deepcopy(agent)
        starts = torch.randint(1, LAST, (32,))
        with torch.no_grad():
            episodes = agent.episode.map(starts, curiosity=1.0 / (1 + number))
        lived = [torch.cat(column) for column in zip(*episodes, strict=True)]
        memory = lived if memory is None else [torch.cat(both) for both in zip(memory, lived)]
        learn(agent, target, optimizer, memory)
        total = sum(rewards.sum().item() for _, _, rewards, _, _ in episodes) / len(episodes)
        lengths = [len(places) for places, *_ in episodes]
        print(f"round {number + 1}: {min(lengths)} to {max(lengths)} steps, return {total:+.2f}")
    with torch.no_grad():
        best = agent.network(torch.arange(1, LAST)).argmax(1).tolist()
    print("from 1 on:", " ".join(("left", "right", "jump")[action] for action in best))


if __name__ == "__main__":
    main()
