from penstock.ir.types import TensorType
from penstock.profiling.records import LaunchRecord, ReadRecord
from penstock.profiling.words import bytes_in_words, counted, listed, seconds_in_words
from tests.unit.profiling.made_up import block, call, launch, profile, straight_graph


def test_a_summary_has_totals_and_a_line_per_block_longest_first():
    first, second = block("score:linear"), block("score:tanh")
    graph = straight_graph(first, second)
    record = call(graph, seconds=2.0, planning_seconds=0.25, building_seconds=1.25, firings=9)
    events = [
        launch(record, second, 8, seconds=0.125),
        ReadRecord(record, 8, 0.1),
        launch(record, first, 8, seconds=0.25, gathered_bytes=2048),
        launch(record, first, 1000, seconds=0.125),
    ]
    run = profile([record], events, traces=1, cache_hits=2)
    assert run.summary().splitlines() == [
        "1 call, 8 instances, 3 launches, 9 firings, 1 read, 1 trace made, 2 cache hits, "
        "0 plan hits",
        "planning 250.00 ms, running 500.00 ms, building 1.25 s",
        "memory of a call, at most: rows 0 B, saved for backward 0 B",
        "",
        "block         launches   rows  mean width  gathered   seconds   share",
        "score:linear         2  1,008       504.0   2.0 KiB  0.375000   75.0%",
        "score:tanh           1      8         8.0       0 B  0.125000   25.0%",
        "total                3  1,016       338.7   2.0 KiB  0.500000  100.0%",
    ]


def test_an_empty_profile_says_so():
    run = profile([], [])
    assert run.summary().splitlines()[0].startswith("0 calls, 0 instances, 0 launches")
    assert run.explain() == "Nothing was launched."
    assert (run.launches, run.reads) == ([], [])


def test_seconds_on_a_device_are_looked_up_once_when_asked_for():
    asked = []

    def elapsed():
        asked.append(True)
        return 0.5

    node = block("score:linear")
    record = LaunchRecord(call(straight_graph(node)), node, 1, "cuda:0", elapsed)
    assert not asked
    assert (record.seconds, record.seconds, len(asked)) == (0.5, 0.5, 1)


def test_the_kind_of_a_launch_tells_how_it_treats_dynamic_dimensions():
    sequence = TensorType("float32", ("n0", 4))
    nodes = [
        block("plain"),
        block("flat", types=(sequence,), is_flat=True),
        block("mixing", types=(sequence,)),
        block("sized", sizes={0: "n0"}),
    ]
    record = call(straight_graph(*nodes))
    assert [launch(record, node, 2).kind for node in nodes] == ["plain", "flat", "mixing", "mixing"]


def test_numbers_are_written_as_people_write_them():
    assert [counted(n, "launch") for n in (0, 1, 1234)] == [
        "0 launches",
        "1 launch",
        "1,234 launches",
    ]
    assert [seconds_in_words(s) for s in (0.0, 2e-6, 0.0025, 3)] == [
        "0 us",
        "2 us",
        "2.50 ms",
        "3.00 s",
    ]
    assert [bytes_in_words(n) for n in (0, 1023, 1536, 3 << 20, 5 << 30, 5 << 40)] == [
        "0 B",
        "1,023 B",
        "1.5 KiB",
        "3.0 MiB",
        "5.0 GiB",
        "5,120.0 GiB",
    ]
    assert [listed(names) for names in (["a"], ["a", "b"], ["a", "b", "c"])] == [
        "a",
        "a and b",
        "a, b and c",
    ]
