"""Generated code that is read into words: what it computes, and what is refused."""

from __future__ import annotations

import ctypes
import logging
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.run.fused import inductor
from penstock.run.fused.form import FusedForm
from penstock.run.fused.launch_code import LaunchCode, Origin, Part, Written
from penstock.run.strips import forms
from penstock.run.strips import library as library_module
from penstock.run.strips.arguments import Argument, arguments_of
from penstock.run.strips.code import NativeCode, read_code
from penstock.run.strips.kernels import Kernel
from penstock.run.strips.library import DONE, FAILED, OUT_OF_RANGE, Library, library
from penstock.run.strips.recorder import KERNEL, MOST_PARAMETERS, Recorder
from penstock.run.strips.sizes import CONSTANT, Refused, Size, exact, is_dense, reach
from penstock.run.strips.stand_ins import NUMBER, views_of
from penstock.run.strips.words import MOST_ITEMS

CPU = torch.device("cpu")
ROWS = (1, 2, 3, 7, 33)

needs_library = pytest.mark.skipif(
    not inductor.has_compiler(CPU) or library() is None,
    reason="needs a C++ compiler and a torch whose BLAS can be called",
)


def gathered(dtype: torch.dtype, *shape: int) -> Part:
    return Part(Origin.GATHERED, dtype, shape, CPU)


def given(dtype: torch.dtype, *shape: int) -> Part:
    return Part(Origin.GIVEN, dtype, shape, CPU)


def uniform(dtype: torch.dtype, *shape: int) -> Part:
    return Part(Origin.UNIFORM, dtype, shape, CPU)


# ---- launches ------------------------------------------------------------------------------------


def cell(dtype: torch.dtype) -> LaunchCode:
    """A Tree-LSTM: a turned weight with a bias, results that are written, merged and given."""

    def run(rows: int, h: Tensor, k: Tensor, c: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        gates = F.linear(torch.cat([h, k], 1), w, b)
        write, keep, out = gates.chunk(3, 1)
        c = write.tanh() + keep.sigmoid() * c
        return c, out.sigmoid() * c.tanh(), gates, c + 1

    parts = (*[gathered(dtype, 5)] * 3, uniform(dtype, 15, 10), uniform(dtype, 15))
    written = Written(dtype, (5,), CPU), Written(dtype, (5,), CPU, is_merged=True)
    return LaunchCode(run, parts, (*written, None, None))


def words(dtype: torch.dtype) -> LaunchCode:
    """An embedding of given tokens, which are given back, and a plain product."""

    def run(rows: int, token: Tensor, table: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        found = F.embedding(token, table)
        return (found @ w).tanh(), found * 2, token

    parts = given(torch.int64), uniform(dtype, 20, 6), uniform(dtype, 6, 4)
    return LaunchCode(run, parts, (Written(dtype, (4,), CPU, is_added=True), None, None))


def backward(dtype: torch.dtype) -> LaunchCode:
    """Two products of pieces of one operand, one of them by a given tensor, and a sum of rows."""

    def run(rows: int, g: Tensor, x: Tensor, w: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return g[:, :4] @ w, (x @ v.t()) + g[:, 4:], g.sigmoid() * 2, g.sum(0)

    parts = gathered(dtype, 8), given(dtype, 3), uniform(dtype, 4, 6), uniform(dtype, 4, 3)
    return LaunchCode(run, parts, (Written(dtype, (6,), CPU), None, None, None))


def joined(dtype: torch.dtype) -> LaunchCode:
    """An operand whose entries of all rows lie behind each other."""

    def run(rows: int, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return ((x @ w).tanh(),)

    parts = Part(Origin.GATHERED, dtype, (3, 4), CPU, is_joined=True), uniform(dtype, 4, 5)
    return LaunchCode(run, parts, (None,))


LAUNCHES: tuple[Callable[[torch.dtype], LaunchCode], ...] = (cell, words, backward, joined)


@cache
def prepared(
    launch: Callable[[torch.dtype], LaunchCode], dtype: torch.dtype
) -> tuple[LaunchCode, inductor.Compiled, NativeCode]:
    code = launch(dtype)
    compiled = code.compile()
    native = read_code(compiled, arguments_of(code), launch.__name__)
    assert native is not None
    return code, compiled, native


def pointers(tensors: list[Tensor]) -> np.ndarray:
    return np.array([tensor.data_ptr() for tensor in tensors], np.int64)


def run_native(native: NativeCode, tensors: list[Tensor], rows: int) -> tuple[int, list[Tensor]]:
    """The status and the results; scratch memory is followed by bytes that must stay."""
    found = library()
    assert found is not None
    sizes = np.array([tensor.shape[0] if tensor.dim() else 0 for tensor in tensors], np.int64)
    needed = found.scratch_bytes(native.words, sizes)
    scratch = torch.full((needed + 64,), 77, dtype=torch.uint8)
    memory = [torch.empty(0)] * native.pointers
    results = []
    for made in native.results:
        if made.is_argument:
            results.append(tensors[made.pointer])
            continue
        first = [made.entries * rows] if made.entries else []
        result = torch.empty(*first, *made.shape, dtype=made.dtype)
        size = made.bytes_a_row * (rows if made.entries else 1)
        assert result.numel() * result.element_size() == size
        if memory[made.pointer].numel():
            result = memory[made.pointer].view(result.shape)
        memory[made.pointer] = result
        results.append(result)
    status = found.run_code(native.words, pointers(tensors), sizes, scratch, pointers(memory))
    assert (scratch[needed:] == 77).all()
    return status, results


@needs_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("launch", LAUNCHES)
def test_words_compute_what_the_generated_python_computes(
    launch: Callable[[torch.dtype], LaunchCode], dtype: torch.dtype
) -> None:
    code, compiled, native = prepared(launch, dtype)
    for rows in ROWS:
        examples, _ = code.examples(rows)
        theirs, ours = ([tensor.clone() for tensor in examples] for _ in range(2))
        expected = compiled(list(theirs))
        status, found = run_native(native, ours, rows)
        assert status == DONE
        tolerance = 1e-6 if dtype == torch.float32 else 1e-14
        for one, other in zip([*found, *ours], [*expected, *theirs], strict=True):
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


@needs_library
def test_sizes_of_products_of_single_precision_are_told() -> None:
    assert prepared(cell, torch.float32)[2].products == ((10, 15),)
    assert sorted(prepared(backward, torch.float32)[2].products) == [(3, 4), (4, 6)]
    assert prepared(cell, torch.float64)[2].products == ()


@needs_library
@pytest.mark.parametrize("bad", [-1, 20, 1 << 40])
def test_an_index_out_of_range_stops_before_anything_is_written(bad: int) -> None:
    code, compiled, native = prepared(words, torch.float32)
    examples, _ = code.examples(3)
    examples[0][1] = bad
    ours = [tensor.clone() for tensor in examples]
    assert run_native(native, ours, 3)[0] == OUT_OF_RANGE
    torch.testing.assert_close(ours, examples, rtol=0, atol=0)
    with pytest.raises(IndexError, match="out of range for size 20"):
        compiled(examples)


# ---- what is refused -----------------------------------------------------------------------------


def refusal(
    function: Callable[..., tuple[Tensor, ...]],
    parts: tuple[Part, ...],
    caplog: pytest.LogCaptureFixture,
    results: tuple[Written | None, ...] = (None,),
) -> str:
    code = LaunchCode(function, parts, results)
    examples, free = code.examples(67)
    compiled = inductor.compile_function(code.run, examples, free, code._slots())
    compiled(list(examples))
    with caplog.at_level(logging.DEBUG, "penstock"):
        assert read_code(compiled, arguments_of(code), "it") is None
    return caplog.records[-1].getMessage()


FLOATS = gathered(torch.float32, 4)


@needs_library
@pytest.mark.parametrize(
    ("function", "parts", "reason"),
    [
        (lambda rows, x: (x.sort(1).values,), (FLOATS,), "aten.sort"),
        (
            lambda rows, x: (torch.bmm(x, x),),
            (gathered(torch.float32, 4, 4),),
            r"extern_kernels\.bmm",
        ),
        (lambda rows, x: (x.t() @ x,), (FLOATS,), "differ from launch to launch"),
    ],
)
def test_code_that_is_not_understood_is_refused(
    function: Callable[..., tuple[Tensor, ...]],
    parts: tuple[Part, ...],
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert re.search(reason, refusal(function, parts, caplog))


@pytest.mark.parametrize(("pointers", "is_taken"), [(MOST_ITEMS, True), (MOST_ITEMS + 1, False)])
def test_code_that_gives_more_than_there_is_room_for_is_refused(
    monkeypatch: pytest.MonkeyPatch, pointers: int, is_taken: bool
) -> None:
    code = NativeCode(np.zeros(2, np.int64), (), pointers, (), ())
    monkeypatch.setattr(forms, "read_code", lambda *args: code)
    form = FusedForm(backward(torch.float32), "it", "it")
    form.compiled = lambda tensors: tensors
    assert (forms.native_code(form) is code) == is_taken


def test_code_that_no_compiler_has_written_is_refused() -> None:
    assert read_code(lambda tensors: tensors, (), "it") is None


def test_generated_code_may_ask_nothing_of_a_size() -> None:
    size = Size(2, 0)
    assert exact(3 * size * 2) == (12, 0)
    for ask in (bool, hash, lambda s: s == 2, lambda s: s != 2, lambda s: s > 1, lambda s: s * 0):
        with pytest.raises(Refused):
            ask(size)
    for compute in (lambda s: s + s, lambda s: s // 2, lambda s: s * s, range, float):
        with pytest.raises((Refused, TypeError)):
            compute(size)


def test_dense_memory_is_told_from_memory_with_gaps() -> None:
    rows = Size(1, 0)
    assert is_dense((rows, 4), (4, 1))
    assert is_dense((4, rows), (1, 4))
    assert is_dense((4, rows), (rows, 1))
    assert not is_dense((rows, 4), (8, 1))
    assert not is_dense((rows, 4), (0, 1))
    assert exact(reach((rows, 4), (8, 1))) == (8, 0)
    for strides in ((0, 1), (3, 1), (8, 2), (1, rows * 2)):
        with pytest.raises(Refused):
            reach((rows, 4), strides)


def kernel_of(*parameters: str) -> Callable[..., None]:
    return Recorder().caller(Kernel(1, parameters, ()))


def test_kernels_take_pointers_and_whole_numbers_alone() -> None:
    (view,), _ = views_of([Argument(torch.float32, (4,), is_free=True, has_rows=True)])
    kernel_of("const float*", "const int64_t", "int64_t")(view, 3, Size(2, 0))
    for parameter, operand in [
        ("const float", 1.0),
        ("const double", 1),
        ("const int64_t", 1.0),
        ("const int64_t", view),
        ("float*", 4),
        ("float*", Size(1, 0)),
    ]:
        with pytest.raises(Refused):
            kernel_of(parameter)(operand)


def test_a_kernel_with_too_many_operands_is_refused() -> None:
    most = MOST_PARAMETERS
    kernel_of(*["int64_t"] * most)(*range(most))
    with pytest.raises(Refused, match=f"{most + 1} arguments"):
        kernel_of(*["int64_t"] * (most + 1))(*range(most + 1))


def test_indices_that_were_looked_at_are_not_written_to() -> None:
    (view,), _ = views_of([Argument(torch.int64, (), is_free=True, has_rows=True)])
    for target in range(2):
        recorder = Recorder()
        kernel = recorder.caller(Kernel(1, ("int64_t*",), ()))
        own = recorder.empty(view.shape, (1,), torch.int64)
        kernel(own)
        looked = recorder.look(own, 5, False)
        with pytest.raises(Refused, match="overwritten"):
            kernel((own, looked)[target])


def test_rows_have_one_size_whichever_argument_is_asked() -> None:
    rows = Argument(torch.int64, (), is_free=True, has_rows=True)
    chunk = Argument(torch.float32, (4,), is_free=True, has_rows=False)
    views, place = views_of([chunk, rows, chunk, rows])
    assert place == 1
    assert [exact(view.shape[0]) for view in views] == [(1, 0), (1, 1), (1, 2), (1, 1)]


# ---- the library ---------------------------------------------------------------------------------


@needs_library
def test_a_kernel_that_fails_is_told(tmp_path: Path) -> None:
    source, path = tmp_path / "fail.cpp", tmp_path / "fail.so"
    source.write_text('#include <cstdint>\nextern "C" void kernel(int64_t) { throw 1; }\n')
    compiler = inductor.cpp_compiler()
    assert compiler is not None
    library_module._compile(compiler, source, path)
    kernel = ctypes.CDLL(str(path)).kernel
    address = ctypes.cast(kernel, ctypes.c_void_p).value
    assert address is not None
    code = np.array([0, 1, KERNEL, 7, address, 1, NUMBER, 0, CONSTANT], np.int64)
    native = NativeCode(code, (), 0, (), (kernel,))
    assert run_native(native, [torch.empty(1)], 1)[0] == FAILED


@needs_library
def test_the_library_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    found = library_module._find()
    assert isinstance(found, Library)
    assert [path.name for path in tmp_path.glob("*.so")] == [found.path.name], "nothing else left"
    monkeypatch.setattr(library_module, "_compile", lambda *args: pytest.fail("compiled again"))
    again = library_module._find()
    assert isinstance(again, Library)
    assert again.path == found.path


@needs_library
def test_a_library_that_cannot_be_loaded_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    path = library_module._compiled()
    path.unlink()
    path.write_bytes(b"cut off")
    found = library_module._find()
    assert isinstance(found, Library)
    assert found.path == path


@needs_library
def test_another_processor_has_a_library_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    folder, compiler = Path(library_module.__file__).parent, Path(shutil.which("sh") or "")
    before = library_module._digest(folder, compiler)
    monkeypatch.setattr(library_module, "processor", lambda: "another")
    assert library_module._digest(folder, compiler) != before


def test_without_a_compiler_there_is_a_line_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library_module, "cpp_compiler", lambda: None)
    with caplog.at_level(logging.INFO, "penstock"):
        assert library_module._find() is None
    assert "there is no C++ compiler" in caplog.text


def test_a_compiler_that_fails_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    compiler = tmp_path / "compiler"
    compiler.write_bytes(b"#!/bin/sh\nprintf 'no \xff' >&2\nexit 1\n")
    compiler.chmod(0o700)
    monkeypatch.setattr(library_module, "cpp_compiler", lambda: str(compiler))
    with caplog.at_level(logging.INFO, "penstock"):
        assert library_module._find() is None
    assert "compiler failed: no \N{REPLACEMENT CHARACTER}" in caplog.text
    assert list(tmp_path.iterdir()) == [compiler]


def test_a_cache_that_cannot_be_written_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(library_module, "cpp_compiler", lambda: shutil.which("sh"))
    with caplog.at_level(logging.INFO, "penstock"):
        assert library_module._find() is None
    assert "launches are not run by C++ code" in caplog.text


def test_a_torch_without_products_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(library_module, "_compiled", lambda: Path("strips.so"))
    monkeypatch.setattr(library_module.ctypes, "CDLL", lambda path: object())
    with caplog.at_level(logging.INFO, "penstock"):
        assert library_module._find() is None
    assert "sgemm_" in caplog.text
