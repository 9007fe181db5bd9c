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
def test_torch_profiler_sees_the_names_of_launches_while_a_profile_is_active():
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
    assert "penstock decay.loop:sin" not in names(plain)


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
    assert "came in 4 sizes" in run.explain()
