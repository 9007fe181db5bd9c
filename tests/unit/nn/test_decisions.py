"""What the models decide for each example, and what that costs."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

import penstock as ps
from tests.unit.nn.models import Decoder, decoder_states, make_case


def test_a_wide_beam_finds_the_likeliest_of_all_sequences():
    torch.manual_seed(0)
    decoder = Decoder()
    search = ps.nn.BeamSearch(decoder, width=5**3, begin=1, end=0, limit=3)
    (state,) = decoder_states()[0]

    def score(tokens):
        now, total, before = state, 0.0, 1
        for token in tokens:
            now, logp = decoder(now, torch.tensor(before))
            total, before = total + logp[token].item(), token
        return total

    sequences = [
        tokens
        for length in (1, 2, 3)
        for tokens in itertools.product(range(5), repeat=length)
        if 0 not in tokens[:-1] and (tokens[-1] == 0 or length == 3)
    ]
    best = max(sequences, key=score)
    tokens, found = search(state)
    assert tuple(tokens.tolist()) == best
    assert found.item() == pytest.approx(score(best))


def test_a_beam_of_one_is_greedy():
    torch.manual_seed(0)
    decoder = Decoder()
    states = [state for (state,) in decoder_states()]
    search = ps.nn.BeamSearch(decoder, width=1, begin=1, end=0, limit=6)
    for state, (tokens, _) in zip(states, ps.map(search, states), strict=True):
        token, greedy = torch.tensor(1), []
        while token != 0 and len(greedy) < 6:
            state, logp = decoder(state, token)
            token = logp.argmax()
            greedy.append(int(token))
        assert tokens.tolist() == greedy


def test_the_end_stands_once_at_the_end():
    torch.manual_seed(0)
    search = ps.nn.BeamSearch(Decoder(), width=4, begin=1, end=0, limit=20)
    for tokens, _ in ps.map(search, [state for (state,) in decoder_states()]):
        assert 0 not in tokens[:-1].tolist()


def test_examples_that_halt_leave_the_batch():
    model, examples, _ = make_case("AdaptiveComputation")
    with ps.profile() as run:
        results = ps.map(model, *zip(*examples, strict=True))
    steps = [int(result.steps) for result in results]
    assert len(set(steps)) > 2
    widths = [launch.rows for launch in run.launches if "gru" in launch.block]
    assert widths == [sum(step > n for step in steps) for n in range(max(steps))]


def test_layers_behind_an_exit_are_not_run():
    model, examples, _ = make_case("EarlyExit")
    with ps.profile() as run:
        results = ps.map(model, [x for (x,) in examples])
    depths = [int(depth) for _, depth in results]
    assert len(set(depths)) > 1
    rows = sum(launch.rows for launch in run.launches if "tanh" in launch.block)
    assert rows == sum(depths)


def test_an_expert_is_launched_once_for_all_who_chose_it():
    torch.manual_seed(0)
    model = ps.nn.MixtureOfExperts(4, [nn.Linear(4, 3) for _ in range(5)], k=2)
    xs = torch.randn(20, 4)
    chosen = model.gate(xs).topk(2).indices.flatten().bincount(minlength=5)
    with ps.profile() as run:
        ps.map(model, xs)
    asked = [launch.rows for launch in run.launches if "each:linear" in launch.block]
    assert sorted(asked) == sorted(chosen[chosen > 0].tolist())


def test_wrong_numbers_are_refused_with_both_facts():
    with pytest.raises(ValueError, match="k is 3, and there are 2 experts"):
        ps.nn.MixtureOfExperts(4, [nn.Linear(4, 3) for _ in range(2)], k=3)
    with pytest.raises(ValueError, match="3 layers and 2 heads"):
        ps.nn.EarlyExit(
            [nn.Linear(4, 4) for _ in range(3)], [nn.Linear(4, 3) for _ in range(2)], threshold=0.5
        )
    with pytest.raises(ValueError, match="the width is 0 and the limit 9"):
        ps.nn.BeamSearch(nn.Identity(), width=0, begin=0, end=1, limit=9)
    with pytest.raises(ValueError, match="the limit is 0, and one step is always made"):
        ps.nn.AdaptiveComputation(nn.GRUCell(4, 8), size=8, limit=0)
    with pytest.raises(ValueError, match="GRU: there are 0 layers"):
        ps.nn.GRU(4, 8, layers=0)
