from penstock.ir.types import TensorType
from penstock.profiling.records import ReadRecord, SplitRecord
from tests.unit.profiling.made_up import (
    block,
    call,
    launch,
    loop_graph,
    profile,
    recursive_graph,
    straight_graph,
)


def paragraphs(run):
    return [text.splitlines() for text in run.explain().split("\n\n")]


def test_a_block_that_ran_wide_needs_no_words():
    node = block("score:linear")
    record = call(straight_graph(node))
    run = profile([record], [launch(record, node, 8)])
    assert paragraphs(run) == [["1 block ran wide: no launch below half the instances."]]


def test_a_loop_that_few_instances_go_on_with_is_a_dependence_chain():
    node = block("decode.loop:linear", context=1)
    record = call(loop_graph(node))
    run = profile([record], [launch(record, node, rows) for rows in (8, 4, 3, 1)])
    assert paragraphs(run) == [
        [
            "decode.loop:linear (train.py:7, in step): 4 launches of 4.0 rows on average, "
            "2 of them below half of the 8 instances.",
            "  Dependence chain: the loop decode.loop needs the result of one launch for the next, "
            "and not every instance goes on as long.",
        ]
    ]


def test_a_recursion_is_named_by_its_function():
    node = block("encode:cat")
    record = call(recursive_graph(node))
    (head, chain), *_ = paragraphs(
        profile([record], [launch(record, node, 8), launch(record, node, 1)])
    )
    assert "2 launches" in head
    assert "the recursion of encode needs" in chain


def test_reads_between_launches_of_a_block_are_told():
    node = block("decode.loop:linear", context=1)
    record = call(loop_graph(node))
    events = []
    for rows in (8, 2, 1):
        events += [ReadRecord(record, rows, 0.1), launch(record, node, rows)]
    assert (
        "  Reads in between: 2 launches waited for a computed value to be read back, "
        "which decides what runs next."
    ) in paragraphs(profile([record], events))[0]


def test_a_read_before_another_call_is_not_in_between():
    node = block("decode.loop:linear", context=1)
    first, second = call(loop_graph(node)), call(loop_graph(node))
    events = [launch(first, node, 1), ReadRecord(second, 1, 0.1), launch(second, node, 1)]
    assert "Reads in between" not in profile([first, second], events).explain()


def test_different_shapes_split_a_block_that_mixes_along_a_dimension():
    node = block("attend:softmax", types=(TensorType("float32", ("n0",)),))
    record = call(straight_graph(node))
    run = profile([record], [launch(record, node, 1, size=size) for size in (2, 3, 5)])
    assert paragraphs(run)[0][1:] == [
        "  Different shapes: it works across a dimension whose size differs between instances "
        "(3 sizes); only rows of one size run together."
    ]


def test_what_keeps_a_block_from_being_padded_is_told():
    node = block("attend:sort", types=(TensorType("float32", ("n0",)),))
    record = call(straight_graph(node))
    why = "sort has no rule for padding"
    launches = [launch(record, node, 1, size=size, obstacle=why) for size in (2, 3)]
    told = paragraphs(profile([record], launches))[0][1]
    assert told.endswith("run together. It cannot be padded: sort has no rule for padding.")


def test_a_block_that_ran_padded_is_told_of_however_wide_it_was():
    node = block("attend:softmax", types=(TensorType("float32", ("n0",)),))
    record = call(straight_graph(node))
    launches = [launch(record, node, 8, size=8, padding=share) for share in (0.25, 0.35)]
    assert paragraphs(profile([record], launches)) == [
        [
            "attend:softmax (train.py:7, in step): 2 launches of 8.0 rows on average.",
            "  Padded: rows of different sizes ran together in 2 launches; "
            "30% of their sequences was padding.",
        ],
        ["1 block ran wide: no launch below half the instances."],
    ]


def test_operations_that_ran_row_by_row_are_named_however_wide_the_block_was():
    node = block("score:odd")
    record = call(straight_graph(node))
    run = profile([record], [launch(record, node, 8, unbatched=("aten.odd", "aten.strange"))])
    assert paragraphs(run)[0][1:] == [
        "  Row by row: no batched form of aten.odd and aten.strange is known."
    ]


def test_a_branch_that_few_instances_take_is_told_apart_from_calls_that_wait_for_each_other():
    node = block("score:rare", arm=1)
    record = call(straight_graph(node))
    rare = profile([record], [launch(record, node, 1)])
    twice = profile([record], [launch(record, node, 1), launch(record, node, 1)])
    assert paragraphs(rare)[0][1] == ("  Few rows came here: only some instances take this branch.")
    assert paragraphs(twice)[0][1] == (
        "  Its rows became ready one after the other: calls that need each other's results."
    )


def test_calls_with_one_instance_each_are_told_of_map():
    node = block("score:linear")
    records = [call(straight_graph(node), instances=1) for _ in range(3)]
    run = profile(records, [launch(record, node, 1) for record in records])
    assert paragraphs(run)[0] == [
        "score: 3 calls with one instance each. Nothing is batched across calls; "
        "score.map runs the instances together."
    ]


def test_a_loop_that_ran_wide_is_told_to_be_serial():
    node = block("decode.loop:linear", context=1)
    record = call(loop_graph(node))
    events = [launch(record, node, 8), ReadRecord(record, 8, 0.1), launch(record, node, 8)]
    assert paragraphs(profile([record], events))[0] == [
        "The loop decode.loop ran serially, 2 launches one after the other: each needs the result "
        "of the one before, and 1 of them waited for a computed value to be read back."
    ]


def test_a_map_that_ran_in_groups_is_not_taken_for_single_calls():
    node = block("score:linear")
    calls = [call(straight_graph(node), instances=1) for _ in range(2)]
    launches = [launch(record, node, 1) for record in calls]
    run = profile(calls, launches, splits=[SplitRecord("score", 2, 2, "their shapes differ")])
    assert paragraphs(run)[0] == [
        "score.map: 2 instances ran in 2 groups, one after the other: their shapes differ."
    ]
    assert "calls with one instance" not in run.explain()
