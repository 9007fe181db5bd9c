import contextvars
import threading
import warnings

import pytest
import torch

import penstock as ps
from penstock.run.recording import current_recorder

pytestmark = pytest.mark.usefixtures("interpreted_loops")


def make_decay():
    @ps.function
    def decay(x, steps):
        return ps.while_loop(lambda k, x: k < steps, lambda k, x: (k + 1, x.sin()), (0, x))[1]

    return decay


def make_halve():
    @ps.function
    def halve(x):
        return ps.while_loop(lambda x: x.norm() > 1.5, lambda x: (x * 0.5,), (x,))[0]

    return halve


STARTS = [2.0**trips * torch.tensor([1.0, 0.0]) for trips in (0, 2, 3)]


def test_launches_come_in_order_of_execution_with_what_they_ran_on():
    decay = make_decay()
    with ps.profile() as run:
        decay.map(torch.ones(3, 2), [1, 3, 2])
    assert [launch.rows for launch in run.launches] == [3, 2, 1]
    assert {launch.block for launch in run.launches} == {"decay.loop:sin"}
    assert [launch.shapes for launch in run.launches] == [((3, 2),), ((2, 2),), ((1, 2),)]
    assert {launch.device for launch in run.launches} == {"cpu"}
    assert {launch.kind for launch in run.launches} == {"plain"}
    assert all(launch.seconds > 0 for launch in run.launches)


def test_results_are_the_same_under_a_profile():
    halve = make_halve()
    plain = halve.map(STARTS)
    with ps.profile():
        profiled = halve.map(STARTS)
    assert all(map(torch.equal, plain, profiled))


def test_gathers_are_told_from_views_and_counted_in_bytes():
    @ps.function
    def chosen(flag, x):
        return ps.cond(flag, lambda: x.sin(), lambda: x)

    with ps.profile() as run:
        chosen.map([True, False, True], torch.ones(3, 2))
        chosen.map([True, True, False], torch.ones(3, 2))
    gathered, viewed = run.launches
    assert (gathered.sources, gathered.is_view, gathered.gathered_bytes) == (("gather",), False, 16)
    assert (viewed.sources, viewed.is_view, viewed.gathered_bytes) == (("view",), True, 0)


def test_shared_operands_are_not_gathered():
    weight = torch.eye(2)

    @ps.function
    def turn(x):
        return x @ weight

    with ps.profile() as run:
        turn.map(torch.ones(3, 2))
    (launch,) = run.launches
    assert dict(zip(launch.sources, launch.shapes)) == {"view": (3, 2), "shared": (2, 2)}


def test_calls_count_instances_firings_reads_traces_and_hits():
    halve = make_halve()
    with ps.profile() as run:
        halve.map(STARTS)
        halve.map(STARTS[:2])
    first, second = run.calls
    assert (first.name, first.instances, second.instances) == ("halve", 3, 2)
    assert first.firings > second.firings > 0
    assert (run.traces, run.cache_hits) == (1, 1)
    assert [read.values for read in run.reads if read.call is first] == [3, 2, 2, 1]
    assert "2 calls, 5 instances" in run.summary()
    assert "1 trace made, 1 cache hit" in run.summary()


def test_planning_building_and_running_share_the_time_of_a_call():
    halve = make_halve()
    with ps.profile() as run:
        halve.map(STARTS)
        halve.map(STARTS)
    first, second = run.calls
    assert first.building_seconds > 0
    assert second.building_seconds == 0
    for call in run.calls:
        assert 0 < call.planning_seconds < call.seconds
        assert call.running_seconds > 0
    mine = [launch.seconds for launch in run.launches if launch.call is first]
    assert sum(mine) < first.seconds - first.building_seconds


def test_nested_profiles_both_record():
    decay = make_decay()
    with ps.profile() as outer:
        decay.map(torch.ones(2, 2), [1, 1])
        with ps.profile() as inner:
            decay.map(torch.ones(2, 2), [2, 2])
    assert (len(outer.launches), len(inner.launches)) == (3, 2)
    assert outer.launches[1:] == inner.launches


def test_nothing_is_recorded_outside_and_after_an_error():
    decay = make_decay()

    def fail():
        raise KeyError

    with pytest.raises(KeyError), ps.profile() as run:
        fail()
    decay.map(torch.ones(2, 2), [1, 1])
    assert run.launches == []
    assert current_recorder() is None


def test_a_schedule_is_not_a_call():
    decay = make_decay()
    with ps.profile() as run:
        decay.schedule(torch.ones(2, 2), [1, 1])
    assert (run.calls, run.launches) == ([], [])


def test_a_recorder_can_be_carried_to_another_thread():
    decay = make_decay()
    graph = decay.graph(torch.ones(2), 1)
    seen = []

    def work(recorder):
        seen.append(current_recorder())
        with recorder.call(graph, 5):
            pass

    with ps.profile() as run:
        thread = threading.Thread(target=contextvars.Context().run, args=(work, current_recorder()))
        thread.start()
        thread.join()
    assert seen == [None]
    assert [call.instances for call in run.calls] == [5]


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's profiler warns on its own account
def test_torch_profiler_sees_the_names_of_launches_with_and_without_a_profile():
    decay = make_decay()

    def names(run):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as trace:
            run()
        return {event.key for event in trace.key_averages()}

    def plain():
        decay.map(torch.ones(2, 2), [1, 1])

    def profiled():
        with ps.profile():
            plain()

    assert "penstock decay.loop:sin" in names(profiled)
    assert "penstock decay.loop:sin" in names(plain)


def test_explain_names_operations_that_run_row_by_row():
    @ps.function
    def histogram(x):
        return torch.histc(x, 4, 0.0, 1.0)

    with ps.profile() as run, warnings.catch_warnings():
        warnings.simplefilter("ignore", ps.PenstockWarning)
        histogram.map(torch.rand(3, 5))
    assert "Row by row: no batched form of histc is known." in run.explain()


def test_explain_counts_the_sizes_of_a_block_that_mixes():
    @ps.function
    def order(query, keys):
        return torch.sort(keys @ query, 0)[0].sum()

    keys = [torch.ones(length, 2) for length in (2, 3, 4, 4, 5)]
    with ps.profile() as run:
        order.map(torch.ones(5, 2), keys)
    assert "Different shapes" in run.explain()
    assert "(4 sizes)" in run.explain()


def test_memory_of_a_call_counts_rows_and_what_is_saved_for_backward():
    decay = make_decay()
    x = torch.ones(3, 20, requires_grad=True)
    with ps.profile() as run:
        decay.map(x.detach(), [1, 2, 3])
        decay.map(x, [1, 2, 3])
    plain, taped = run.calls
    assert plain.arena_bytes >= x.nbytes
    assert (plain.saved_bytes, taped.saved_bytes > 0) == (0, True)
    assert [launch.written_bytes for launch in run.launches[:3]] == [240, 160, 80]
    assert "saved for backward" in run.summary()


def test_a_retrace_is_told_with_what_had_changed():
    decay = make_decay()
    with ps.profile() as run:
        decay.map(torch.ones(2, 2), [1, 1])
        decay.map(torch.ones(2, 2, dtype=torch.float64), [1, 1])
    (reason,) = run.retraces
    assert reason.startswith("decay: ")
    assert "float64" in reason
    assert "1 retrace" in run.summary()
    assert f"Traced again, {reason}" in run.explain()


def test_what_happened_has_a_place_in_time():
    halve = make_halve()
    with ps.profile() as run:
        halve.map(STARTS)
    (call,) = run.calls
    ends = call.began + call.seconds
    for event in (*run.launches, *run.reads, *run.plans):
        assert call.began <= event.began
        assert event.began + event.seconds <= ends
    assert sum(plan.firings for plan in run.plans) == call.firings


def test_waits_of_queues_are_recorded_with_what_they_waited_for():
    @ps.function
    def there_and_back(x):
        with ps.device("cpu:1"):
            y = torch.sin(x)
        with ps.device("cpu:0"):
            return torch.cos(y)

    with ps.profile() as run:
        there_and_back.map(torch.ones(3, 2))
    assert {launch.device for launch in run.launches} == {"cpu:0", "cpu:1"}
    assert ("cpu:0", "for rows of cpu:1") in {(wait.device, wait.reason) for wait in run.waits}
    assert "cpu:0 waited" in run.summary()
    assert "cpu:0 waited for rows of cpu:1: 1 time" in run.explain()


def test_the_rows_of_an_instance_are_found_by_what_they_needed():
    @ps.function
    def total(tree, i):
        if tree.is_leaf(i):
            return table[tree.token[i]].sin()
        return (total(tree, tree.left(i)) + total(tree, tree.right(i))).sin()

    table = torch.ones(4, 20)
    trees = [ps.data.Tree.from_nested(((0, 2), 3)), ps.data.Tree.from_nested((0, 1))]
    roots = [tree.root for tree in trees]
    with ps.profile() as run:
        total.map(trees, roots)
        total.map(trees, roots)
    first, second = run.calls
    assert second.trail is None
    rows = first.trail.rows_of(0)
    assert sorted(len(row.needs) for row in rows) == [0, 0, 0, 2, 2]
    assert rows[-1].needs[-1] == len(rows) - 2 or len(rows) - 2 in rows[-1].needs
    assert len(first.trail.rows_of(1)) == 3


def test_eager_code_with_operands_of_different_shapes_is_told_so():
    with ps.profile() as run:
        ps.map(lambda x: torch.tanh(x @ x), [torch.ones(n, n) for n in (2, 3, 4, 5, 5)])
    assert (
        "Different shapes: its operands had 4 kinds of shapes, and only those of one kind run "
        "together in eager code." in run.explain()
    )
    assert "one after the other" not in run.explain()


def test_a_step_with_arguments_of_different_structures_is_told_so():
    class Top(torch.nn.Module):
        def forward(self, stack):
            return stack[-1].sin().cos()

    top = Top()
    with ps.profile() as run:
        ps.map(lambda x, n: top([x] * n), torch.ones(8, 4), [1, 2, 3, 4] * 2)
    assert (
        "Different arguments: it was called with 4 structures of arguments, such as lists of "
        "different lengths, and only calls of one structure run together. Pass it the tensors "
        "that it needs." in run.explain()
    )
