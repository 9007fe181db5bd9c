"""Maps inside maps, in threads, in worker processes, and under torch's own contexts."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import penstock as ps
from tests.existing_code.harness import (
    MAPS,
    WAYS,
    Maker,
    compare,
    plainly,
    under_set_eager,
    weighted_sum,
)

pytestmark = pytest.mark.usefixtures("unchanged_torch")


def sentences():
    return Maker().sentences((3, 1, 4), 2)


@pytest.mark.parametrize("way", MAPS)
def test_a_map_inside_a_map_agrees(way):
    def build(make):
        w = make.tensor(2, 2)

        def outer(xs):
            return torch.stack(ps.map(lambda x: torch.tanh(x @ w), list(xs))).sum(0)

        return outer, make.sentences((3, 1, 4), 2)

    def plain_build(make):
        w = make.tensor(2, 2)
        return lambda xs: torch.tanh(xs @ w).sum(0), make.sentences((3, 1, 4), 2)

    from tests.existing_code.harness import Program, assert_agree, observe

    expected = observe(Program("plain", plain_build), plainly)
    assert_agree(observe(Program("nested", build), MAPS[way]), expected)


def test_a_map_inside_a_map_that_reads_agrees():
    def inner(x):
        while x.norm().item() > 0.5:
            x = x / 2
        return x

    def outer(xs):
        return sum(ps.map(inner, list(xs))) * 2

    def plain_outer(xs):
        return sum(inner(x) for x in xs) * 2

    rows = sentences()
    torch.testing.assert_close(ps.map(outer, rows), plainly(plain_outer, rows))


def test_an_exception_inside_an_inner_map_names_both_instances():
    def inner(x, k):
        if k == 1:
            raise KeyError("inner")
        return x

    def outer(xs):
        return ps.map(inner, list(xs), list(range(len(xs))))

    with pytest.raises(KeyError) as caught:
        ps.map(outer, [torch.ones(1, 2), torch.ones(3, 2)])
    assert len(caught.value.__notes__) >= 1


def test_a_ps_function_inside_eager_code_is_one_step():
    w = torch.tensor([0.5, 1.5], requires_grad=True)

    @ps.function
    def settle(x):
        return ps.while_loop(lambda y: y.norm() > 0.5, lambda y: (y * w / 4,), (x,))[0]

    def plain_settle(x):
        while x.norm() > 0.5:
            x = x * w / 4
        return x

    rows = Maker().tensors(4, 2)
    mapped = ps.map(lambda x: settle(x * 2).sin(), rows)
    expected = [plain_settle(x * 2).sin() for x in rows]
    torch.testing.assert_close(mapped, expected)
    torch.testing.assert_close(
        torch.autograd.grad(weighted_sum(mapped), [*rows, w]),
        torch.autograd.grad(weighted_sum(expected), [*rows, w]),
    )


def test_a_map_inside_batching_agrees():
    rows = Maker().tensors(3, 2)
    with ps.batching():
        first = [x * 2 for x in rows]
        second = ps.map(lambda y: y.sin(), first)
        third = [y + 1 for y in second]
    torch.testing.assert_close(third, [(x * 2).sin() + 1 for x in rows])


def test_batching_inside_batching_agrees():
    x = torch.ones(2, requires_grad=True)
    with ps.batching():
        y = x * 2
        with ps.batching(granularity="op"):
            z = y * x
        u = z + y
    torch.testing.assert_close(u, torch.full((2,), 4.0))
    (gradient,) = torch.autograd.grad(u.sum(), x)
    assert gradient.tolist() == [6.0, 6.0]


def reading(x):
    for _ in range(3):
        if x.sum().item() > 0:
            x = x * 0.5 - 1
        else:
            x = torch.tanh(x) + 1
    return x


def test_maps_in_four_threads_do_not_meet():
    model = Maker().module(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)))
    expected = [plainly(lambda x: reading(model(x)), Maker(k).tensors(5, 2)) for k in range(4)]
    barrier = threading.Barrier(4)

    def work(k):
        torch.set_default_dtype(torch.float64)
        barrier.wait(30)
        return [ps.map(lambda x: reading(model(x)), Maker(k).tensors(5, 2)) for _ in range(3)]

    with ThreadPoolExecutor(4) as pool:
        for k, rounds in enumerate(pool.map(work, range(4))):
            for found in rounds:
                torch.testing.assert_close(found, expected[k], rtol=1e-9, atol=1e-11)


def test_other_threads_see_unchanged_torch_while_a_map_runs():
    inside, done = threading.Event(), threading.Event()
    found = []

    def watch():
        inside.wait(30)
        layer = nn.Linear(2, 2)
        y = layer(torch.ones(1, 2)) * 2
        found.append((type(y), y.grad_fn is not None, y.sum().item() is not None))
        done.set()

    def run(x):
        y = x * 2
        inside.set()
        done.wait(30)
        return y

    thread = threading.Thread(target=watch)
    thread.start()
    ps.map(run, Maker().tensors(2, 2))
    thread.join()
    assert found == [(torch.Tensor, True, True)]


class Sentences(Dataset):
    """Maps a model over a group of sentences, in whatever process the loader runs."""

    def __len__(self):
        return 4

    def __getitem__(self, k):
        rows = Maker(k).sentences((2, 3, 1), 2)
        return [row.detach() for row in ps.map(lambda xs: reading(xs.sum(0)), rows)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_map_inside_a_data_loader_worker_agrees(workers):
    ps.map(lambda xs: reading(xs.sum(0)), sentences())
    loader = DataLoader(
        Sentences(),
        batch_size=None,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )
    for k, found in enumerate(loader):
        expected = plainly(lambda xs: reading(xs.sum(0)), Maker(k).sentences((2, 3, 1), 2))
        torch.testing.assert_close(found, [row.detach() for row in expected])


@pytest.mark.parametrize("way", MAPS)
def test_outputs_under_no_grad_have_no_gradient(way):
    rows = Maker().tensors(3, 2)
    with torch.no_grad():
        outputs = MAPS[way](lambda x: x * 2, rows)
    assert not any(output.requires_grad for output in outputs)
    torch.testing.assert_close(outputs, [(x * 2).detach() for x in rows])


def test_outputs_under_inference_mode_are_inference_tensors():
    rows = Maker().tensors(3, 2)
    with torch.inference_mode():
        outputs = ps.map(lambda x: x * 2, rows)
        assert all(output.is_inference() for output in outputs)
    torch.testing.assert_close(outputs, [(x * 2).detach() for x in rows])


@pytest.mark.parametrize("way", WAYS)
def test_autocast_around_a_map_is_that_of_the_plain_loop(way):
    layer = nn.Linear(3, 2).float()
    rows = [row.detach().float().requires_grad_() for row in Maker().tensors(3, 3)]

    def run(x):
        return layer(x).relu() @ layer.weight

    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, expected = WAYS[way](run, rows), plainly(run, rows)
    for mine, wanted in zip(found, expected, strict=True):
        assert mine.dtype is wanted.dtype is torch.bfloat16
        torch.testing.assert_close(mine + 0, wanted, rtol=2e-2, atol=2e-2)
    mine = torch.autograd.grad(sum(row.float().sum() for row in found), layer.weight)
    wanted = torch.autograd.grad(sum(row.float().sum() for row in expected), layer.weight)
    torch.testing.assert_close(mine, wanted, rtol=5e-2, atol=5e-2)


def test_under_set_eager_every_instance_runs_to_its_end_before_the_next():
    order = []

    def run(k):
        order.append(("start", k))
        (torch.tensor(float(k)) * 2).item()
        order.append(("end", k))
        return k

    assert under_set_eager(run, list(range(3))) == [0, 1, 2]
    assert order == [(word, k) for k in range(3) for word in ("start", "end")]


def test_under_set_eager_tensors_are_plain_tensors():
    types = []
    under_set_eager(lambda x: types.append(type(x * 2)), Maker().tensors(2, 2))
    assert types == [torch.Tensor, torch.Tensor]


def test_batching_under_set_eager_records_nothing():
    with ps.set_eager(True), ps.batching():
        assert type(torch.ones(2) * 2) is torch.Tensor


@pytest.mark.parametrize("way", MAPS)
def test_a_bound_method_a_partial_and_a_callable_object_can_be_mapped(way):
    from functools import partial

    class Scaler:
        def __init__(self, w):
            self.w = w

        def scale(self, x):
            return x * self.w

        __call__ = scale

    def build_of(form):
        def build(make):
            scaler = Scaler(make.tensor(2))
            forms = {
                "method": scaler.scale,
                "object": scaler,
                "partial": partial(torch.mul, scaler.w),
            }
            return forms[form], make.tensors(3, 2)

        return build

    for form in ("method", "object", "partial"):
        compare(build_of(form), MAPS[way])


def test_a_builtin_of_torch_can_be_mapped():
    rows = Maker().tensors(3, 2)
    torch.testing.assert_close(ps.map(torch.tanh, rows), [torch.tanh(row) for row in rows])


def test_a_profile_around_a_map_counts_it_and_the_results_stay_the_same():
    rows = Maker().tensors(3, 2)
    with ps.profile() as run:
        found = ps.map(lambda x: torch.tanh(x * 2), rows)
    assert 1 <= len(run.launches) <= 2
    assert sum(launch.rows for launch in run.launches) >= 3
    assert run.summary()
    assert run.explain()
    torch.testing.assert_close(found, [torch.tanh(row * 2) for row in rows])


def test_what_cannot_be_batched_is_named_in_the_explanation():
    import warnings

    norm = nn.BatchNorm1d(2)
    with ps.profile() as run, warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.PenstockWarning)
        ps.map(norm, Maker().sentences((3, 4, 3), 2))
    assert "batch_norm" in run.explain().lower().replace("batchnorm", "batch_norm")
