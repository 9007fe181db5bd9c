"""Compiled launches: what they compute, when they are made, and what happens where they fail."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

import penstock as ps
from penstock.data import random_binary_trees
from penstock.errors import ArgumentError
from penstock.plan.schedule import Launch, Picks, Span
from penstock.run.batched import BlockInput
from penstock.run.fused import form, heat, inductor, known, launch_code, numerics
from penstock.run.fused import indices as indices_module
from penstock.run.fused.binding import are_apart
from penstock.run.fused.form import FusedForm
from penstock.run.fused.indices import Index, Indices
from penstock.run.fused.launch_code import LaunchCode, Origin, Part, Written
from penstock.run.fused.setting import Fusion
from tests.fused import as_it_is, fused_without_compiler

CPU = torch.device("cpu")

needs_compiler = pytest.mark.skipif(
    not inductor.has_compiler(CPU), reason="needs a C++ compiler to compile launches with"
)


def code(
    function: Callable[..., tuple[Tensor, ...]], dtype: torch.dtype = torch.float32
) -> LaunchCode:
    """A launch of one gathered, one given, one uniform operand of 4 values; the first result is
    written.
    """
    kinds = [Part(origin, dtype, (4,), CPU) for origin in Origin]
    return LaunchCode(function, tuple(kinds), (Written(dtype, (4,), CPU), None))


def mixed(rows: int, x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    return (x * w + y).tanh(), (x + y).sigmoid()


# ---- numerics ------------------------------------------------------------------------------------


def test_tanh_is_exact_to_a_few_units_in_the_last_place_everywhere() -> None:
    x = torch.cat([torch.linspace(-12, 12, 100_001), torch.logspace(-30, 1, 20_000)])
    expected = torch.tanh(x.double())
    error = (numerics.tanh(x).double() - expected).abs() / expected.abs().clamp_min(1e-300)
    assert error.max() < 4e-7


def test_tanh_stays_within_one_and_keeps_nan_and_infinities() -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 8.99])
    found = numerics.tanh(x)
    assert found[0].isnan()
    assert found[1:5].tolist() == pytest.approx([1.0, -1.0, 0.0, 0.0], rel=4e-7, abs=0)
    assert found[1:].abs().max() <= 1


def test_tanh_of_doubles_is_torchs() -> None:
    assert numerics.tanh(torch.zeros(1, dtype=torch.float64)) is NotImplemented


# ---- compiled code -------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_compiled_code_gathers_computes_and_writes_for_any_number_of_rows(
    dtype: torch.dtype,
) -> None:
    made = code(mixed, dtype)
    compiled = made.compile()
    for rows in (1, 2, 50):
        examples, _ = made.examples(rows)
        theirs = [tensor.clone() for tensor in examples]
        given = compiled(list(theirs))
        expected = made.run(*examples)
        torch.testing.assert_close(list(given), list(expected))
        torch.testing.assert_close(theirs, examples)


@needs_compiler
def test_a_tree_of_compiled_launches_agrees_with_plain_ones() -> None:
    torch.manual_seed(0)
    embedding, cell = torch.nn.Embedding(50, 6), torch.nn.Linear(12, 6)
    program = _tree_program(embedding, cell)
    trees = random_binary_trees(8, vocabulary=50, seed=1)
    results = {}
    for mode in ("never", "always"):
        with ps.set_fusion(mode):
            for module in (embedding, cell):
                module.zero_grad()
            roots = program.map(trees, out="stack")
            (roots * torch.arange(6)).sum().backward()
        results[mode] = [roots.detach(), embedding.weight.grad.clone(), cell.weight.grad.clone()]
    torch.testing.assert_close(results["always"], results["never"], rtol=1e-4, atol=1e-5)


def _tree_program(embedding: torch.nn.Module, cell: torch.nn.Module) -> ps.Function:
    @ps.function
    def encode(tree, i):  # type: ignore[no-untyped-def]
        def inner(i):  # type: ignore[no-untyped-def]
            both = torch.cat([encode(tree, tree.left(i)), encode(tree, tree.right(i))])
            return cell(both).tanh()

        return ps.cond(tree.is_leaf(i), lambda i: embedding(tree.token[i]), inner, (i,))

    @ps.function
    def root(tree):  # type: ignore[no-untyped-def]
        return encode(tree, tree.root)

    return root


def test_code_that_differs_from_the_plain_one_is_not_used() -> None:
    def wrong(function, examples, free, slots):  # type: ignore[no-untyped-def]
        return lambda tensors: [values + 1 for values in function(*tensors)]

    with (
        patch("penstock.run.fused.launch_code.compile_function", wrong),
        pytest.raises(inductor.CannotCompile, match="differ for 1 rows"),
    ):
        code(mixed).compile()


@pytest.mark.parametrize("error", [1e-6, 1e-2])
def test_rounding_goes_by_the_largest_result(error: float) -> None:
    """Results that cancel out differ by as much as those that do not: both are of the size of what
    they were computed from.
    """

    def grown(rows: int, x: Tensor, y: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return x, 0 * y + torch.tensor([1e6, 0.01, 0.01, 0.01])

    def rounded(function, examples, free, slots):  # type: ignore[no-untyped-def]
        return lambda tensors: [values + error * 1e6 for values in function(*tensors)]

    with patch("penstock.run.fused.launch_code.compile_function", rounded):
        if error < 1e-4:
            code(grown).compile()
            return
        with pytest.raises(inductor.CannotCompile, match="differ for 1 rows"):
            code(grown).compile()


def test_code_that_cannot_be_checked_is_not_used() -> None:
    @ps.function
    def share(x, parts):  # type: ignore[no-untyped-def]
        return x * (12 // parts)

    x, parts = torch.ones(2, 1), torch.tensor([[3], [4]])
    with fused_without_compiler(), torch.no_grad():  # which checks with no parts
        assert share.map(x, parts, out="stack").tolist() == [[4.0], [3.0]]


def test_code_without_rows_is_not_compiled() -> None:
    launch = LaunchCode(
        lambda rows, w: (w,), (Part(Origin.UNIFORM, torch.float32, (4,), CPU),), (None,)
    )
    with pytest.raises(inductor.CannotCompile, match="no operand has rows"):
        launch.compile()


def test_making_code_draws_nothing_from_the_callers_generator() -> None:
    before = torch.get_rng_state()
    with patch("penstock.run.fused.launch_code.compile_function", as_it_is):
        made = code(mixed)
        made.gain(made.compile(), 5)
    assert torch.equal(before, torch.get_rng_state())


# ---- when it is made -----------------------------------------------------------------------------


@pytest.mark.parametrize("is_on_disk", [False, True])
def test_a_block_is_compiled_once_its_launches_have_paid_for_it(is_on_disk: bool) -> None:
    done: list[int] = []
    compiled: list[int] = []

    def compiler(function, examples, free, slots):  # type: ignore[no-untyped-def]
        compiled.append(len(done))
        return as_it_is(function, examples, free, slots)

    @ps.function
    def double(x):  # type: ignore[no-untyped-def]
        return x * 2

    with (
        fused_without_compiler(),
        ps.set_fusion("auto"),
        patch("penstock.run.fused.launch_code.compile_function", compiler),
        patch.dict(heat.PRICE, cpu=9.5 * heat.SAVING["cpu"]),
        patch.dict(heat.PRICE_AGAIN, cpu=4.5 * heat.SAVING["cpu"]),
        patch("penstock.run.blocks.was_compiled", lambda mark: is_on_disk),
        torch.no_grad(),
    ):
        for call in range(14):
            assert double.map(torch.ones(3), out="stack").tolist() == [2.0, 2.0, 2.0]
            done.append(call)
    assert compiled == [4 if is_on_disk else 9]


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder where nothing was ever compiled."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    return tmp_path


def test_a_half_that_was_compiled_is_known_to_later_processes(cache: Path) -> None:
    inputs = [BlockInput("row", "float32", (3,)), BlockInput("uniform", "float32", (3, 4))]
    mark, wider = (known.mark_of("f:add.forward", some) for some in (inputs, inputs[:1]))
    assert not known.was_compiled(mark)
    made = FusedForm(code(mixed), "mixed", mark)
    with (
        ps.set_fusion("always"),
        patch("penstock.run.fused.launch_code.compile_function", as_it_is),
        patch.object(form, "has_compiler", lambda device: True),
    ):
        assert made.ready(3) is not None
    assert known.was_compiled(mark)
    assert not known.was_compiled(wider)
    assert not known.was_compiled(known.mark_of("f:add.backward", inputs))


def test_a_half_that_could_not_be_compiled_is_not_known(cache: Path) -> None:
    def broken(function, examples, free, slots):  # type: ignore[no-untyped-def]
        raise inductor.CannotCompile("out of ideas")

    with (
        patch.object(form, "has_compiler", lambda device: True),
        patch("penstock.run.fused.launch_code.compile_function", broken),
    ):
        assert FusedForm(code(mixed), "mixed", "mark").ready(3) is None
    assert not known.was_compiled("mark")


def test_where_nothing_can_be_noted_all_goes_on(cache: Path) -> None:
    (cache / "penstock").write_text("a file where the folder should be")
    known.note_compiled("mark")
    assert not known.was_compiled("mark")


def test_the_cache_lies_where_the_user_wants_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # what is set below is taken back
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    assert inductor.cache_folder() == tmp_path / "inductor"
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "other"))
    assert inductor.cache_folder() == tmp_path / "other"


def test_code_that_is_no_faster_is_not_used() -> None:
    made = FusedForm(code(mixed), "mixed", "mark")
    with fused_without_compiler(), ps.set_fusion("auto"):
        with patch.object(LaunchCode, "gain", lambda code, compiled, rows: 1.0):
            assert made.ready(3) is None
        assert made.is_tried


def test_without_a_compiler_blocks_run_uncompiled_after_one_notice(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with (
        caplog.at_level(logging.WARNING, "penstock"),
        patch.object(form, "has_compiler", lambda device: False),
        patch.object(form, "_noticed", set()),
    ):
        assert FusedForm(code(mixed), "one", "mark").ready(3) is None
        assert FusedForm(code(mixed), "two", "mark").ready(3) is None
    assert [record.getMessage() for record in caplog.records] == [
        "no compiler for cpu code was found: blocks run uncompiled"
    ]


def test_a_compiler_that_fails_leaves_the_plain_way(caplog: pytest.LogCaptureFixture) -> None:
    def broken(function, examples, free, slots):  # type: ignore[no-untyped-def]
        raise inductor.CannotCompile("out of ideas")

    with (
        fused_without_compiler(),
        caplog.at_level(logging.INFO, "penstock"),
        patch("penstock.run.fused.launch_code.compile_function", broken),
    ):
        assert FusedForm(code(mixed), "mixed.forward", "mark").ready(3) is None
    assert caplog.messages == ["mixed.forward runs uncompiled: out of ideas"]


def test_code_that_fails_at_run_time_leaves_the_error_to_the_plain_way() -> None:
    @ps.function
    def embed(weight, i):  # type: ignore[no-untyped-def]
        return torch.nn.functional.embedding(i, weight)

    weight = torch.ones(4, 2)
    with fused_without_compiler(), torch.no_grad():
        embed.map(ps.shared(weight), torch.tensor([0, 1]))
        with pytest.raises(IndexError) as raised:
            embed.map(ps.shared(weight), torch.tensor([0, 9, 1]))
    assert any("instance 1" in note for note in raised.value.__notes__)


def lookups(rows: int, i: Tensor, x: Tensor, table: Tensor) -> tuple[Tensor, ...]:
    """Every kind of index: into a table, along a row, at places, of classes."""
    picked = torch.nn.functional.embedding(i, table) + table[i - 4]
    along = x.gather(1, i.unsqueeze(1)) + x.scatter(1, i.unsqueeze(1), 1.0).sum(1, keepdim=True)
    classes = torch.nn.functional.cross_entropy(x, i, reduction="none")
    return picked + along + classes.unsqueeze(1), picked


@needs_compiler
@pytest.mark.parametrize("wrong", [4, -1, 1 << 40])
def test_an_index_out_of_range_raises_in_compiled_code(wrong: int) -> None:
    kinds = (
        Part(Origin.GIVEN, torch.int64, (), CPU),
        Part(Origin.GATHERED, torch.float32, (4,), CPU),
        Part(Origin.UNIFORM, torch.float32, (4, 4), CPU),
    )
    made = LaunchCode(lookups, kinds, (Written(torch.float32, (4,), CPU), None))
    compiled = made.compile()
    examples, _ = made.examples(3)
    examples[0][:] = torch.tensor([0, 3, 2])
    theirs = [tensor.clone() for tensor in examples]
    torch.testing.assert_close(compiled(list(theirs)), list(made.run(*examples)))
    torch.testing.assert_close(theirs, examples)
    theirs[0][1] = wrong
    with pytest.raises(IndexError, match="out of range"):
        compiled(theirs)


def test_an_operand_that_lies_otherwise_in_memory_goes_the_plain_way() -> None:
    @ps.function
    def scale(weight, x):  # type: ignore[no-untyped-def]
        return weight @ x

    with fused_without_compiler(), torch.no_grad():
        for weight in (torch.rand(3, 3), torch.rand(3, 3).t()):
            found = scale.map(ps.shared(weight), torch.eye(3), out="stack")
            torch.testing.assert_close(found, weight.t())


def test_the_mode_is_put_back_and_checked() -> None:
    before = Fusion.mode
    with ps.set_fusion("always"):
        assert Fusion.mode == "always"
    assert Fusion.mode == before
    with pytest.raises(ArgumentError, match=r"'sometimes'(.|\n)*'auto', 'always', 'never'"):
        ps.set_fusion("sometimes")
    assert Fusion.mode == before


# ---- slots ---------------------------------------------------------------------------------------


def test_consecutive_slots_are_a_piece_of_a_count() -> None:
    indices = Indices()
    for start in (0, 5, 7):
        found = indices.of(Span(0, start, 3), CPU, 0 if start < 7 else 2)()
        assert found.tolist() == list(range(start - (start == 7) * 2, start - (start == 7) * 2 + 3))
        assert found.data_ptr() % 16 == 0


def test_other_slots_are_brought_to_the_device_once() -> None:
    indices, source = Indices(), Picks(0, np.array([4, 9, 2]))
    assert indices.of(source, CPU)().tolist() == [4, 9, 2]
    assert indices.of(source, CPU)() is indices.of(source, CPU)()
    assert indices.of(source, CPU, 2)().tolist() == [2, 7, 0]


def test_a_thread_waits_for_slots_that_another_one_brings() -> None:
    indices, slots = Indices(), Picks(0, np.array([4, 9, 2]))
    with torch.inference_mode():  # else they are here at once
        wanted = indices.of(slots, CPU)
    begun, others = threading.Event(), []

    def ask() -> None:
        begun.set()
        others.append(wanted())

    def bring(device: torch.device, waiting: list[Index]) -> None:
        thread.start()
        begun.wait()
        time.sleep(0.05)  # the other thread asks meanwhile, and must not find nothing
        original(device, waiting)

    thread, original = threading.Thread(target=ask), indices_module._bring
    with patch.object(indices_module, "_bring", bring):
        mine = wanted()
        thread.join()
    assert [found.tolist() for found in (mine, *others)] == [[4, 9, 2]] * 2


@pytest.mark.parametrize(
    ("read", "written", "expected"),
    [
        (Span(0, 0, 4), Span(0, 4, 2), True),
        (Span(0, 0, 4), Span(0, 3, 2), False),
        (Span(0, 0, 4), Span(1, 0, 4), True),
        (Picks(0, np.array([1, 9])), Span(0, 4, 2), True),
        (Picks(0, np.array([1, 5, 9])), Span(0, 4, 2), False),
    ],
)
def test_launches_that_read_what_they_write_are_told_apart(
    read: Span | Picks, written: Span | Picks, expected: bool
) -> None:
    assert are_apart(Launch(0, 2, (read,), (written,))) == expected


def test_examples_of_large_rows_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty-seven rows of a megabyte would not fit beside what a program has in memory."""
    made = LaunchCode(
        lambda rows, x: (x * 2,),
        (Part(Origin.GATHERED, torch.float32, (8,), CPU),),
        (Written(torch.float32, (8,), CPU),),
    )
    monkeypatch.setattr(launch_code, "MOST_ELEMENTS", 100)
    sizes = {tensor.shape[0] for tensor in made.examples(made._rows)[0]}
    assert sizes == {5, 18, 20}


def test_memory_that_runs_out_while_code_is_made_leaves_the_plain_way() -> None:
    made = FusedForm(code(mixed), "mixed", "mark")
    with patch.object(LaunchCode, "compile", side_effect=torch.OutOfMemoryError("no memory")):
        assert made.ready(3) is None
    assert made.ready(3) is None
