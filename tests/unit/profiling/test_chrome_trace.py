import json

from penstock.profiling.records import BuildRecord, PlanRecord, ReadRecord, WaitRecord
from tests.unit.profiling.made_up import block, call, launch, loop_graph, profile


def made_up_trace(tmp_path):
    node = block("decode.loop:sin")
    record = call(loop_graph(node), began=10.0, seconds=1.0)
    events = [
        launch(record, node, 8, seconds=0.25, beginning=10.25),
        ReadRecord(record, 8, 0.125, 10.5),
        launch(record, node, 3, seconds=0.25, beginning=lambda: 10.75),
    ]
    run = profile(
        [record],
        events,
        builds=[BuildRecord(record, "decode.loop:sin", 10.125, 0.125)],
        plans=[PlanRecord(record, 10.0, 0.125, 7)],
        waits=[WaitRecord(record, "cpu:1", "for rows of cpu:0", 10.0, 0.5)],
    )
    run.export_chrome_trace(tmp_path / "trace.json")
    return json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_each_device_has_a_row_under_calls_building_planning_and_reads(tmp_path):
    events = made_up_trace(tmp_path)
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == dict(enumerate(["calls", "building", "planning", "reads", "cpu", "cpu:1"], 1))
    assert {event["pid"] for event in events} == {1}


def test_events_have_begin_and_duration_in_microseconds_since_the_first_call(tmp_path):
    events = [event for event in made_up_trace(tmp_path) if event["ph"] == "X"]
    assert [(e["name"], e["ts"], e["dur"], e["tid"]) for e in events] == [
        ("decode", 0, 1e6, 1),
        ("wait for rows of cpu:0", 0, 500e3, 6),
        ("plan decode", 0, 125e3, 3),
        ("build decode.loop:sin", 125e3, 125e3, 2),
        ("decode.loop:sin", 250e3, 250e3, 5),
        ("read", 500e3, 125e3, 4),
        ("decode.loop:sin", 750e3, 250e3, 5),
    ]


def test_launches_say_what_they_ran_on(tmp_path):
    about = made_up_trace(tmp_path)[-1]["args"]
    assert (about["rows"], about["shapes"]) == (3, [[3, 4]])
    assert about["source"] == "train.py:7, in step"


def test_a_profile_of_nothing_is_a_trace_all_the_same(tmp_path):
    profile([], []).export_chrome_trace(tmp_path / "trace.json")
    kept = json.loads((tmp_path / "trace.json").read_text())
    assert {event["ph"] for event in kept["traceEvents"]} == {"M"}


def rows_of_launches(tmp_path, *spans):
    """The row, begin and duration in microseconds of launches from a begin to an end."""
    node = block("decode.loop:sin")
    record = call(loop_graph(node), began=0.0, seconds=1.0)
    launches = [launch(record, node, 1, seconds=b - a, beginning=a) for a, b in spans]
    profile([record], launches).export_chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    placed = [e for e in events if e.get("cat") == "device"]
    return [(names[e["tid"]], e["ts"], e["dur"]) for e in placed]


def test_what_overlaps_gets_a_row_of_its_own_since_perfetto_would_drop_it(tmp_path):
    assert rows_of_launches(tmp_path, (0.0, 0.5), (0.25, 0.75), (0.5, 0.625)) == [
        ("cpu", 0, 500e3),
        ("cpu (2)", 250e3, 500e3),
        ("cpu", 500e3, 125e3),
    ]


def test_what_overlaps_by_an_error_of_clocks_begins_a_little_later(tmp_path):
    (_, second) = rows_of_launches(tmp_path, (0.0, 0.5), (0.499999, 0.75))
    assert second == ("cpu", 500e3, 250e3)
