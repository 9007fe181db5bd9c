"""Runs of recorded steps: values, reads, outputs, errors and records."""

import gc
import weakref

import numpy as np
import pytest
import torch

import penstock as ps
from penstock.plan.random_keys import as_signed, mix
from penstock.run.recording import recorded_call
from tests.recorded_steps import Steps, numbers


@pytest.fixture(params=[False, True], ids=["untaped", "taped"])
def steps(request):
    return Steps(is_taped=request.param)


def test_steps_of_one_kind_run_in_one_launch(steps):
    xs = [torch.randn(3) for _ in range(5)]
    with ps.profile() as profile, recorded_call("scope", 5) as steps.run.recorder:
        made = [steps.call("torch.tanh", steps.input(x), instance=k) for k, x in enumerate(xs)]
        steps.flush(*made)
        outputs = steps.outputs(*made)
    torch.testing.assert_close(outputs, [x.tanh() for x in xs])
    assert [launch.rows for launch in profile.launches] == [5]


def test_values_stored_as_elements_are_loaded_launched_and_taken_out(steps):
    xs = [torch.randn(4, 3), torch.randn(2, 3), torch.randn(4, 3)]
    made = [steps.call("torch.neg", steps.input(x)) for x in xs]
    steps.flush(*made)
    torch.testing.assert_close(steps.outputs(*made), [-x for x in xs])


def test_parts_are_aliases_and_joins_are_copies(steps):
    x, y = torch.randn(4, 3), torch.randn(3)
    whole, row = steps.input(x), steps.input(y)
    joined = steps.join(steps.part(whole, 1, 2), steps.join(row, row, is_stack=True))
    last = steps.call("torch.exp", steps.part(joined, 3))
    steps.flush(joined, last)
    expected = torch.cat([x[1:3], torch.stack([y, y])])
    torch.testing.assert_close(steps.outputs(joined, last), [expected, y.exp()])


def test_values_live_through_flushes(steps):
    x = torch.randn(3)
    first = steps.call("torch.sin", steps.input(x))
    steps.flush(first)
    second = steps.call("torch.cos", first)
    steps.flush(first, second)
    torch.testing.assert_close(steps.outputs(second, first), [x.sin().cos(), x.sin()])


def test_outputs_have_memory_of_their_own(steps):
    first, second = (steps.call("torch.sin", steps.input(torch.randn(3))) for _ in range(2))
    steps.flush(first, second)
    one, two, again = steps.outputs(first, second, first)
    storages = {each.untyped_storage().data_ptr() for each in (one, two, again)}
    assert len(storages) == 3
    one.zero_()
    torch.testing.assert_close(steps.outputs(first), [again])


def test_reads_give_tensors_that_later_flushes_leave_alone(steps):
    x = torch.randn(3)
    value = steps.call("torch.sin", steps.input(x))
    steps.flush(value)
    (read,) = steps.read(value)
    for _ in range(3):
        other = steps.call("torch.neg", steps.input(torch.randn(3)))
        steps.flush(other)
    torch.testing.assert_close(read, x.sin())
    assert not read.requires_grad


def test_nothing_can_be_asked_for(steps):
    assert steps.outputs() == []
    assert steps.read() == []
    steps.flush()


def test_inputs_are_copied_when_they_are_flushed(steps):
    x = torch.ones(3)
    value = steps.input(x)
    steps.flush(value)
    x.zero_()
    torch.testing.assert_close(steps.outputs(value), [torch.ones(3)])


def test_a_uniform_tensor_is_fetched_once(steps):
    w = steps.weight(torch.randn(3))
    x = torch.randn(3)
    for _ in range(3):
        value = steps.call("torch.mul", steps.input(x), w)
        steps.flush(value)
    assert steps.fetched == [0]
    torch.testing.assert_close(steps.outputs(value), [x * w.tensor])


def test_random_keys_go_along_with_a_launch(steps):
    drawn = [steps.draw(instance) for instance in (0, 1, 4)]
    steps.flush(*drawn)
    expected = as_signed(mix(mix(7, np.array([0, 1, 4])), np.zeros(3, np.int64)))
    assert [int(key) for key in steps.read(*drawn)] == expected.tolist()


def test_a_scope_works_from_inference_mode_and_autocast():
    steps = Steps(is_taped=False)
    with torch.inference_mode():
        first = steps.call("torch.sin", steps.input(torch.ones(3)))
        steps.flush(first)
    with torch.autocast("cpu", torch.bfloat16):
        second = steps.call("torch.mul", first, first)
        steps.flush(second)
    torch.testing.assert_close(steps.outputs(second), [torch.ones(3).sin() ** 2])


def test_finishing_lets_go_of_arenas_that_nobody_asks_for(steps):
    first = steps.call("torch.sin", steps.input(torch.ones(3)))
    second = steps.call("torch.sin", steps.input(torch.ones(4)))
    steps.flush(first, second)
    steps.finish(first)
    held = [arena for arena in steps.run.arenas if arena.chunks]
    assert [arena.kind.shape for arena in held] == [(3,)]
    torch.testing.assert_close(steps.outputs(first), [torch.ones(3).sin()])
    steps.finish()
    steps.finish()
    assert steps.run.arenas == []


def test_nothing_is_left_of_a_run(steps):
    x = torch.ones(3, requires_grad=True)
    value = steps.call("torch.sin", steps.input(x))
    steps.flush(value)
    (output,) = steps.outputs(value)
    run = weakref.ref(steps.run)
    steps.finish()
    del steps.run
    gc.collect()
    if output.requires_grad:
        assert run() is not None
    del output
    gc.collect()
    assert run() is None


def test_a_failing_row_is_named_with_its_instance():
    steps = Steps(is_taped=False, numbers=[10, 11, 12])
    table = steps.weight(torch.randn(4, 2))
    found = [
        steps.call("torch.nn.functional.embedding", steps.input(torch.tensor(index)), table)
        for index in (1, 3)
    ]
    bad = steps.call(
        "torch.nn.functional.embedding", steps.input(torch.tensor(9)), table, instance=2
    )
    with pytest.raises(IndexError) as caught:
        steps.flush(*found, bad)
    assert any("instance 12" in note for note in caught.value.__notes__)
    assert steps.run.failed_instance == 2


def test_opaque_rows_run_in_order_and_the_failing_one_is_named(steps):
    seen = []

    def visit(x):
        seen.append(float(x.detach()[0]))
        if len(seen) == 3:
            raise ValueError("no")
        return x * 2

    steps.run.numbers = [5, 6, 7]
    xs = [torch.full((2,), float(k), requires_grad=True) for k in range(3)]
    for k, x in enumerate(xs):
        steps.opaque("visit", visit, steps.input(x), shapes=[(2,)], instance=k)
    with pytest.raises(ValueError, match="no") as caught:
        steps.flush()
    assert seen == [0.0, 1.0, 2.0]
    assert "instance 7" in caught.value.__notes__[0]
    assert steps.run.failed_instance == 2


def test_an_opaque_function_of_all_rows_runs_once(steps):
    calls = []

    def double(rows, x, w):
        calls.append(rows)
        return x * 2, x + w

    w = steps.weight(torch.ones(2))
    xs = [torch.randn(2) for _ in range(3)]
    made = [
        steps.opaque("double", double, steps.input(x), w, shapes=[(2,), (2,)], is_batched=True)
        for x in xs
    ]
    steps.flush(*(lazy for pair in made for lazy in pair))
    torch.testing.assert_close(steps.outputs(*(pair[1] for pair in made)), [x + 1 for x in xs])
    assert calls == [3]


def test_a_scope_is_recorded_with_launches_reads_and_seconds():
    steps = Steps()
    with ps.profile() as profile, recorded_call("scope", 2) as steps.run.recorder:
        w = steps.weight(torch.randn(3, 3, requires_grad=True))
        made = [steps.call("torch.matmul", steps.input(torch.randn(2, 3)), w) for _ in range(2)]
        done = [steps.opaque("odd", torch.neg, value, shapes=[(2, 3)]) for value in made]
        steps.flush(*done)
        steps.read(*done)
        outputs = steps.outputs(*done)
    (record,) = profile.calls
    assert (record.name, record.instances, record.graph) == ("scope", 2, None)
    assert [launch.block for launch in profile.launches] == ["torch.matmul", "odd"]
    assert profile.launches[0].shapes == ((2, 2, 3), (3, 3))
    assert [read.values for read in profile.reads] == [4]
    assert 0 < record.planning_seconds < record.engine_seconds < record.seconds
    assert record.recording_seconds > 0
    assert "recording" in profile.summary()
    assert "no batched form of odd" in profile.explain()
    sum(output.sum() for output in outputs).backward()
    assert [launch.block for launch in profile.launches[2:]] == [
        "odd.backward",
        "torch.matmul.backward",
    ]


def test_steps_go_back_to_the_places_from_which_they_were_asked_for(steps):
    xs = [torch.randn(3), torch.randn(2, 3), torch.randn(3), torch.randn(4, 3), torch.tensor(2)]
    values = [steps.input(x) for x in xs]
    steps.flush(*values)
    order = [3, 0, 4, 1, 2, 0]
    found = steps.run.read(numbers([values[k] for k in order]))
    torch.testing.assert_close(found, [xs[k] for k in order])
