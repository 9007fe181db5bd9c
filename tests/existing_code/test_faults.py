"""Exceptions, interruptions and refusals; nothing of a scope survives them."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import nn

import penstock as ps
from penstock.errors import PenstockError
from tests.existing_code.harness import GRANULARITIES, MAPS, Maker, plainly

pytestmark = pytest.mark.usefixtures("unchanged_torch", "no_fiber_left")


class OddError(Exception):
    """What the user's code raises."""


def rows(count=4):
    return Maker().tensors(count, 2)


def failing(x, k):
    y = x * 2
    if k == 2:
        raise OddError("two")
    return y.sin()


def failing_after_a_read(x, k):
    y = (x * 2).sum()
    if y.item() > -100 and k == 2:
        raise OddError("two")
    return y.sin()


FAILING = [failing, failing_after_a_read]


@pytest.mark.parametrize("way", MAPS)
@pytest.mark.parametrize("fn", FAILING, ids=lambda fn: fn.__name__)
def test_an_exception_surfaces_as_itself_with_the_instance_index(fn, way):
    with pytest.raises(OddError) as caught:
        MAPS[way](fn, rows(), list(range(4)))
    assert type(caught.value) is OddError
    assert caught.value.args == ("two",)
    notes = "\n".join(caught.value.__notes__)
    assert "instance 2" in notes


@pytest.mark.parametrize("fn", FAILING, ids=lambda fn: fn.__name__)
def test_the_traceback_of_an_exception_leads_to_the_users_line(fn):
    with pytest.raises(OddError) as caught:
        ps.map(fn, rows(), list(range(4)))
    names = [entry.name for entry in caught.traceback]
    assert fn.__name__ in names


@pytest.mark.parametrize("way", MAPS)
@pytest.mark.parametrize("fn", FAILING, ids=lambda fn: fn.__name__)
def test_on_error_return_puts_the_exception_in_its_place(fn, way):
    columns = rows(), list(range(4))
    results = MAPS[way](fn, *columns, on_error="return")
    assert type(results[2]) is OddError
    for k in (0, 1, 3):
        torch.testing.assert_close(results[k], fn(columns[0][k], k))
    weights = torch.autograd.grad(sum(results[k].sum() for k in (0, 1, 3)), columns[0][0])
    expected = torch.autograd.grad(fn(columns[0][0], 0).sum(), columns[0][0])
    torch.testing.assert_close(weights, expected)


def test_on_error_return_keeps_every_exception():
    def run(k):
        if k % 2:
            raise ValueError(k)
        return torch.tensor(float(k)) * 2

    results = ps.map(run, list(range(5)), on_error="return")
    assert [type(result).__name__ for result in results] == [
        "Tensor",
        "ValueError",
        "Tensor",
        "ValueError",
        "Tensor",
    ]


def test_a_failing_operation_is_named_with_its_instance():
    def run(x):
        return x @ torch.ones(3, 3)

    columns = [torch.ones(3), torch.ones(2), torch.ones(3)]
    with pytest.raises(RuntimeError) as caught:
        ps.map(run, columns)
    assert "instance 1" in "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])


def test_an_error_of_an_operation_can_be_caught_by_the_instance():
    def run(x):
        try:
            y = x @ torch.ones(3)
            return y.sum() * 1
        except RuntimeError:
            return torch.tensor(-1.0)

    columns = [torch.ones(3), torch.ones(2)]
    assert [float(y) for y in ps.map(run, columns)] == [3.0, -1.0]


@pytest.mark.parametrize("way", MAPS)
def test_the_finally_blocks_of_the_others_run(way):
    closed = []

    def run(k):
        try:
            x = torch.tensor(float(k)) * 2
            if k == 1:
                raise OddError
            x.item()
            return x
        finally:
            closed.append(k)

    with pytest.raises(OddError):
        MAPS[way](run, list(range(4)))
    assert 1 in closed
    started = set(closed)
    assert len(closed) == len(started)


@pytest.mark.parametrize("way", MAPS)
def test_instances_that_wait_are_stopped_cleanly(way):
    opened, closed = [], []

    def run(k):
        opened.append(k)
        try:
            x = torch.tensor(float(k))
            for _ in range(50):
                x = x + 1
                if x.item() > 5 and k == 3:
                    raise OddError
            return x
        finally:
            closed.append(k)

    with pytest.raises(OddError):
        MAPS[way](run, list(range(6)))
    assert sorted(opened) == sorted(closed) == list(range(6))


def test_context_managers_of_stopped_instances_are_left():
    depth = []

    class Inside:
        def __enter__(self):
            depth.append(1)

        def __exit__(self, *error):
            depth.pop()

    def run(k):
        with Inside(), torch.no_grad():
            if (torch.tensor(float(k)) * 2).item() == 4:
                raise OddError
            return (torch.tensor(1.0) * 2).item()

    with pytest.raises(OddError):
        ps.map(run, list(range(5)))
    assert depth == []


@pytest.mark.parametrize("way", MAPS)
def test_a_keyboard_interrupt_goes_through(way):
    def run(x, k):
        if (x * 2).sum().item() > -100 and k == 1:
            raise KeyboardInterrupt
        return x

    with pytest.raises(KeyboardInterrupt):
        MAPS[way](run, rows(), list(range(4)), on_error="return")


def test_a_system_exit_goes_through():
    def run(x):
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        ps.map(run, rows(), on_error="return")


def test_generators_are_closed_when_their_instance_is_stopped():
    closed = []

    def steps(k):
        try:
            while True:
                yield (torch.tensor(float(k)) * 2).item()
        finally:
            closed.append(k)

    def run(k):
        walk = steps(k)
        next(walk)
        if k == 1:
            raise OddError
        next(walk)
        return next(walk)

    with pytest.raises(OddError) as caught:
        ps.map(run, list(range(3)))
    caught.value.__traceback__ = None
    del caught
    gc.collect()
    assert sorted(closed) == [0, 1, 2]


def test_a_map_inside_a_generator_that_is_left_early_is_cleaned_up():
    def batches():
        for start in range(3):
            yield ps.map(lambda x: x * 2, rows())[start]

    walk = batches()
    next(walk)
    walk.close()


def test_a_batching_scope_inside_a_generator_that_is_closed_is_left():
    def batches():
        with ps.batching():
            x = torch.ones(2) * 2
            yield 1
            x + 1

    walk = batches()
    next(walk)
    walk.close()


@pytest.mark.parametrize("way", MAPS)
def test_backward_inside_a_mapped_function_is_a_clear_error(way):
    def run(x):
        (x * 2).sum().backward()

    with pytest.raises(PenstockError, match="backward"):
        MAPS[way](run, rows())


def test_autograd_grad_inside_a_mapped_function_is_a_clear_error():
    def run(x):
        return torch.autograd.grad((x * 2).sum(), x)

    with pytest.raises(PenstockError, match=r"grad|backward"):
        ps.map(run, rows())


def test_backward_inside_batching_is_right_or_a_clear_error():
    x = torch.ones(2, requires_grad=True)
    try:
        with ps.batching():
            (x * 2).sum().backward()
    except PenstockError as error:
        assert "backward" in str(error)  # noqa: PT017
        assert x.grad is None
    else:
        assert x.grad.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("call", ["map", "batching"])
def test_an_unknown_granularity_is_refused(call):
    def use():
        if call == "map":
            ps.map(lambda x: x, [1], granularity="atom")
        with ps.batching(granularity="atom"):
            pass

    with pytest.raises((ValueError, TypeError), match="granularity") as caught:
        use()
    assert isinstance(caught.value, PenstockError)
    assert "atom" in str(caught.value)
    for name in GRANULARITIES:
        assert name in str(caught.value)


def test_an_unknown_on_error_is_refused():
    with pytest.raises(PenstockError, match="on_error"):
        ps.map(lambda x: x, [1], on_error="ignore")


def test_an_unknown_out_is_refused():
    with pytest.raises(PenstockError, match="out"):
        ps.map(lambda x: x, [1], out="dict")


def test_columns_of_different_lengths_are_refused_before_anything_runs():
    ran = []
    with pytest.raises(PenstockError):
        ps.map(lambda x, y: ran.append(x), [1, 2], [1, 2, 3])
    assert ran == []


def test_something_that_cannot_be_called_is_refused():
    with pytest.raises(PenstockError):
        ps.map(3, [1, 2])


def test_no_column_at_all_is_refused():
    with pytest.raises(PenstockError):
        ps.map(lambda: 1)


@pytest.mark.parametrize("way", MAPS)
def test_empty_columns_give_an_empty_list(way):
    assert MAPS[way](lambda x: x, []) == []
    assert MAPS[way](lambda x, y: x, [], []) == []
    assert MAPS[way](nn.Linear(2, 2), torch.zeros(0, 2)) == []


def test_a_wrong_argument_is_pythons_own_error():
    with pytest.raises(TypeError):
        ps.map(lambda x: x, [1], [2])
    with pytest.raises(TypeError):
        ps.map(lambda x: x, [1], unknown=3)


def test_keyword_arguments_are_shared():
    w = torch.tensor([2.0, 3.0], requires_grad=True)

    def run(x, *, w, name):
        assert name == "n"
        return x * w

    columns = rows()
    mapped = ps.map(run, columns, w=w, name="n")
    torch.testing.assert_close(mapped, plainly(run, columns, w=w, name="n"))


def test_columns_marked_shared_are_the_same_for_all():
    w = torch.tensor([2.0, 3.0])
    columns = rows()
    mapped = ps.map(lambda x, w: x * w, columns, ps.shared(w))
    torch.testing.assert_close(mapped, [x * w for x in columns])


def test_out_stack_and_pad_work_on_eager_code():
    columns = rows(3)
    stacked = ps.map(lambda x: {"a": x * 2}, columns, out="stack")
    torch.testing.assert_close(stacked["a"], torch.stack([x * 2 for x in columns]))
    lengths = [torch.ones(2), torch.ones(3)]
    values, sizes = ps.map(lambda x: x * 2, lengths, out="pad")
    assert values.tolist() == [[2, 2, 0], [2, 2, 2]]
    assert sizes.tolist() == [2, 3]


def test_out_stack_of_different_shapes_names_the_instances():
    with pytest.raises(PenstockError):
        ps.map(lambda x: x * 2, [torch.ones(2), torch.ones(3)], out="stack")


def test_a_failed_batching_scope_raises_what_its_body_raised():
    def use():
        with ps.batching():
            torch.ones(2) * 2
            raise OddError

    with pytest.raises(OddError):
        use()


def test_an_operation_that_fails_in_batching_raises_torchs_error():
    with pytest.raises(RuntimeError), ps.batching():
        torch.ones(2) @ torch.ones(3)


def test_recorded_tensors_of_a_failed_scope_raise_clearly():
    kept = []

    def run(x, k):
        kept.append(x * 2)
        if k == 1:
            raise OddError
        return x

    with pytest.raises(OddError):
        ps.map(run, rows(), list(range(4)))
    expected = [x * 2 for x in rows()]
    for value, wanted in zip(kept, expected, strict=False):
        try:
            found = value + 0
        except PenstockError as error:
            assert "instance 1" in str(error) or "failed" in str(error)  # noqa: PT017
        else:
            torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("way", MAPS)
def test_recorded_tensors_that_escape_work_as_tensors(way):
    kept = []

    def run(x):
        y = x * 2
        kept.append(y)
        return y.sin()

    columns = rows()
    MAPS[way](run, columns)
    for value, x in zip(kept, columns, strict=True):
        assert value.shape == (2,)
        torch.testing.assert_close(value.detach() + 0, (x * 2).detach())
        assert value.tolist() == (x * 2).tolist()
        torch.testing.assert_close(torch.cat([value, x]), torch.cat([x * 2, x]))
        (gradient,) = torch.autograd.grad((value * value).sum(), x)
        torch.testing.assert_close(gradient, 8 * x.detach())


def test_escaped_tensors_can_be_recorded_in_another_map():
    kept = []
    columns = rows()
    ps.map(lambda x: kept.append(x * 2), columns)
    results = ps.map(lambda y, x: torch.cat([y, x]), kept, columns)
    torch.testing.assert_close(results, [torch.cat([x * 2, x]) for x in columns])


def test_escaped_tensors_can_be_pickled_and_deep_copied(tmp_path):
    kept = []
    ps.map(lambda x: kept.append((x * 2).detach()), rows())
    torch.testing.assert_close(copy.deepcopy(kept[0]) + 0, kept[0] + 0)
    torch.save(kept[1], tmp_path / "kept.pt")
    loaded = torch.load(tmp_path / "kept.pt")
    assert type(loaded) is torch.Tensor
    torch.testing.assert_close(loaded, kept[1] + 0)


def test_runaway_recursion_is_a_recursion_error():
    def run(x):
        return run(x + 1)

    with pytest.raises(RecursionError):
        ps.map(run, rows())


def test_an_assertion_in_one_instance_is_an_assertion_error():
    def run(x):
        assert x.sum() > 1e9
        return x

    with pytest.raises(AssertionError):
        ps.map(run, rows())


def test_stop_iteration_from_an_instance_surfaces():
    with pytest.raises((StopIteration, RuntimeError)):
        ps.map(lambda x: next(iter([])), rows())


def test_a_scope_after_a_failed_one_works():
    with pytest.raises(OddError):
        ps.map(failing, rows(), list(range(4)))
    columns = rows()
    torch.testing.assert_close(ps.map(lambda x: x * 2, columns), [x * 2 for x in columns])


def test_many_failing_maps_leave_no_objects_behind():
    def count():
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    def fail_once():
        with pytest.raises(OddError) as caught:
            ps.map(failing_after_a_read, rows(), list(range(4)))
        caught.value.__traceback__ = None

    for _ in range(3):
        fail_once()
    before = count()
    for _ in range(5):
        fail_once()
    assert count() <= before + 5


@pytest.mark.parametrize("reads", [False, True])
def test_a_failing_step_of_a_map_inside_an_instance_belongs_to_that_instance(reads):
    table = nn.Embedding(5, 3)

    def inside(number):
        return table(torch.tensor([number])).sum()

    def outside(number):
        total = torch.stack(ps.map(inside, [0, number, 1])).sum()
        assert not reads or total.item() < 1e9
        return total

    first, second, third = ps.map(outside, [2, 9, 3], on_error="return")
    torch.testing.assert_close([first, third], [outside(2), outside(3)])
    assert isinstance(second, IndexError)
    with pytest.raises(IndexError) as info:
        ps.map(outside, [2, 9, 3])
    assert "in instance 1 of outside.map" in info.value.__notes__
