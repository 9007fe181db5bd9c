import json

from penstock.profiling.records import PlanRecord, ReadRecord, WaitRecord
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
        plans=[PlanRecord(record, 10.0, 0.125, 7)],
        waits=[WaitRecord(record, "cpu:1", "for rows of cpu:0", 10.0, 0.5)],
    )
    run.export_chrome_trace(tmp_path / "trace.json")
    return json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_each_device_has_a_row_under_calls_planning_and_reads(tmp_path):
    events = made_up_trace(tmp_path)
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert names == {0: "calls", 1: "planning", 2: "reads", 3: "cpu", 4: "cpu:1"}
    assert {event["pid"] for event in events} == {1}


def test_events_have_begin_and_duration_in_microseconds_since_the_first_call(tmp_path):
    events = [event for event in made_up_trace(tmp_path) if event["ph"] == "X"]
    assert [(e["name"], e["ts"], e["dur"], e["tid"]) for e in events] == [
        ("decode", 0, 1e6, 0),
        ("plan decode", 0, 125e3, 1),
        ("decode.loop:sin", 250e3, 250e3, 3),
        ("read", 500e3, 125e3, 2),
        ("decode.loop:sin", 750e3, 250e3, 3),
        ("wait for rows of cpu:0", 0, 500e3, 4),
    ]


def test_launches_say_what_they_ran_on(tmp_path):
    about = made_up_trace(tmp_path)[-2]["args"]
    assert (about["rows"], about["shapes"]) == (3, [[3, 4]])
    assert about["source"] == "train.py:7, in step"


def test_a_profile_of_nothing_is_a_trace_all_the_same(tmp_path):
    profile([], []).export_chrome_trace(tmp_path / "trace.json")
    kept = json.loads((tmp_path / "trace.json").read_text())
    assert {event["ph"] for event in kept["traceEvents"]} == {"M"}
