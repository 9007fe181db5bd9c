"""Reading a value suspends only the instance that reads: launches follow the longest instance."""

from __future__ import annotations

import pytest
import torch

import penstock as ps
from tests.existing_code.harness import GRANULARITIES, MAPS, WAYS, Maker, compare, plainly
from tests.existing_code.models import READERS

pytestmark = pytest.mark.usefixtures("unchanged_torch")


def launches(fn, *columns, is_training=False, **options):
    with torch.set_grad_enabled(is_training), ps.profile() as run:
        ps.map(fn, *columns, **options)
    return len(run.launches)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", READERS)
def test_models_that_read_their_own_values_agree_with_the_plain_loop(name, way):
    compare(READERS[name], WAYS[way])


@pytest.mark.parametrize("granularity", GRANULARITIES)
@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("is_training", [False, True], ids=["inference", "training"])
def test_launches_follow_the_longest_instance_and_not_the_sum(name, granularity, is_training):
    fn, rows = READERS[name](Maker())
    rows = [row.detach() for row in rows]
    options = {"granularity": granularity, "is_training": is_training}
    alone = [launches(fn, [row], **options) for row in rows]
    together = launches(fn, rows, **options)
    assert sum(alone) > 3 * max(alone)
    assert together <= 2 * max(alone)


def test_instances_that_never_read_do_not_wait():
    seen = []

    def run(k):
        x = torch.tensor(float(k))
        seen.append(("start", k))
        if k == 0:
            (x * 2).item()
        seen.append(("end", k))
        return x

    ps.map(run, [0, 1, 2])
    assert seen[0] == ("start", 0)
    assert seen[-1] == ("end", 0)


def test_all_that_wait_are_read_together():
    def run(x):
        total = x.sum()
        for _ in range(4):
            total = total * 0.5 + (total * 3).item()
        return total

    rows = Maker().tensors(20, 3, grad=False)
    with ps.profile() as profile:
        results = ps.map(run, rows)
    assert len(profile.launches) <= 2 * launches(run, rows[:1])
    torch.testing.assert_close(results, plainly(run, rows))


READS = {
    "item": lambda t: t.item(),
    "float": lambda t: float(t),
    "int": lambda t: int(t),
    "bool": lambda t: bool(t > 0),
    "if": lambda t: "positive" if t > 0 else "negative",
    "tolist": lambda t: t.tolist(),
    "numpy": lambda t: float(t.numpy()),
    "equal": lambda t: torch.equal(t, t + 0),
    "allclose": lambda t: torch.allclose(t, t + 1),
    "index": lambda t: [10, 20, 30][(t > 0).long()],
    "range": lambda t: len(range((t > 0).long() + 1)),
    "format": lambda t: f"{t:.3f}",
    "repr": lambda t: repr(t),
    "is nonzero": lambda t: torch.is_nonzero(t),
    "complex": lambda t: complex(t),
    "contains": lambda t: 1.0 in t.view(1),
    "isfinite": lambda t: bool(torch.isfinite(t)),
    "numpy array": lambda t: float(t.detach().__array__()),
    "size of a selection": lambda t: t.view(1)[t.view(1) > 0].numel(),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", READS)
def test_every_way_to_read_gives_the_number(name, way):
    read = READS[name]

    def run(x):
        return read((x * 2).sum())

    rows = Maker().tensors(3, 2, grad=False)
    assert WAYS[way](run, rows) == plainly(run, rows)


@pytest.mark.parametrize("name", READS)
def test_every_way_to_read_suspends_only_the_reader(name):
    read = READS[name]

    def run(x):
        for _ in range(2):
            read((x * 2).sum())
            x = torch.sin(x)
        return x

    rows = Maker().tensors(8, 2, grad=False)
    assert launches(run, rows) <= 2 * launches(run, rows[:1])


def test_a_read_inside_batching_runs_what_is_recorded_so_far():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    with ps.batching():
        y = (x * 2).sum()
        assert y.item() == 6.0
        z = y * x
        assert z.tolist() == [6.0, 12.0]
        later = z.exp().log()
    torch.testing.assert_close(later, torch.tensor([6.0, 12.0]))
    (gradient,) = torch.autograd.grad(later.sum(), x)
    torch.testing.assert_close(gradient, torch.tensor([12.0, 12.0]))


def test_batching_launches_equal_steps_of_a_loop_once():
    rows, w = Maker().tensors(10, 3, grad=False), torch.eye(3)
    with ps.profile() as profile, ps.batching():
        outputs = [torch.tanh(row @ w) for row in rows]
    assert len(profile.launches) <= 3
    torch.testing.assert_close(outputs, [torch.tanh(row @ w) for row in rows])


def test_a_batching_scope_without_anything_recorded_is_fine():
    with ps.batching():
        pass
    with ps.batching(granularity="op"):
        assert 1 + 1 == 2


def test_reads_in_a_sorted_key_and_in_a_comparison_chain_agree():
    def build(make):
        def run(xs):
            order = sorted(range(len(xs)), key=lambda i: xs[i].sum())
            best = max(xs, key=lambda x: x[0].item())
            return torch.stack([xs[i] for i in order]), best * 2

        return run, make.sentences((3, 5, 2), 2)

    for way in MAPS.values():
        compare(build, way)


def test_a_read_of_what_another_instance_recorded_gives_its_value():
    shared = {}

    def run(k):
        if k == 0:
            shared["x"] = torch.tensor(3.0) * 2
            return shared["x"]
        return torch.tensor(shared["x"].item() + k)

    assert [float(x) for x in ps.map(run, [0, 1, 2])] == [6.0, 7.0, 8.0]
