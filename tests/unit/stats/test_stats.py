"""Programs are counted by what they contain, and what cannot be read is named."""

from __future__ import annotations

import io
import warnings
from pathlib import Path

import pytest
import torch
from rich.console import Console

from penstock.cli import main
from penstock.stats.contents import Contents, UnreadableError
from penstock.stats.onnx_graphs import contents_of_onnx
from penstock.stats.python_source import contents_of_source
from penstock.stats.report import run_stats
from penstock.stats.torch_graphs import contents_of_export, contents_of_script

BOTH, CONDITIONAL, LOOP, NEITHER = (
    Contents(True, True),
    Contents(True, False),
    Contents(False, True),
    Contents(False, False),
)


def model(body: str) -> str:
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    return f"class Net(Module):\n    def forward(self, x, mask=None):\n{lines}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (model("return self.layer(x)"), NEITHER),
        (model("if x.sum() > 0:\n    x = -x\nreturn x"), CONDITIONAL),
        (model("return x if x.sum() > 0 else -x"), CONDITIONAL),
        (model("while x.sum() > 0:\n    x = x - 1\nreturn x"), LOOP),
        (model("for t in range(len(x)):\n    self.step(x[t])"), LOOP),
        (model("return ps.cond(p, f, lambda: ps.scan(g, 0, x))"), BOTH),
        (model("if self.training and mask is None:\n    x = -x\nreturn x"), CONDITIONAL),
        (model("if self.training:\n    x = -x\nreturn x"), NEITHER),
        (model("if mask is None:\n    x = -x\nreturn x"), NEITHER),
        (model("if isinstance(x, tuple):\n    x = x[0]\nreturn x"), NEITHER),
        (model("for layer in enumerate(self.layers):\n    x = layer(x)\nreturn x"), NEITHER),
        ("@ps.function\ndef f(x):\n    while x > 0:\n        x = x - 1\n    return x\n", LOOP),
        ("@torch.jit.script\ndef f(x):\n    return x\n", NEITHER),
        ("@ps.function(name='f')\ndef f(x):\n    match x:\n        case 0: pass\n", CONDITIONAL),
        ("def f(x):\n    if x > 0:\n        return x\n", None),
        ("class A:\n    def run(self, x):\n        return x if x else 1\n", None),
    ],
)
def test_python_source_counts_as_it_is_written(
    tmp_path: Path, text: str, expected: Contents | None
) -> None:
    file = tmp_path / "program.py"
    file.write_text(text)
    assert contents_of_source(file) == expected


class Branch(torch.nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))


class Repeat(torch.nn.Module):
    def forward(self, x):
        return torch._higher_order_ops.while_loop(lambda x: x.sum() < 10, lambda x: (x + 1,), (x,))


@pytest.mark.parametrize(
    ("module", "expected"),
    [(torch.nn.Linear(2, 2), NEITHER), (Branch(), CONDITIONAL), (Repeat(), LOOP)],
    ids=["straight", "branch", "loop"],
)
def test_exported_programs_show_their_operators(
    tmp_path: Path, module: torch.nn.Module, expected: Contents
) -> None:
    file = tmp_path / "program.pt2"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own affair
        torch.export.save(torch.export.export(module, (torch.ones(2),)), str(file))
        assert contents_of_export(file) == expected


def counted(x: torch.Tensor, n: int) -> torch.Tensor:
    for _ in range(n):
        if bool(x.sum() > 0):
            x = x - 1
    return x


def test_scripts_show_their_nodes(tmp_path: Path) -> None:
    file = tmp_path / "program.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TorchScript is deprecated
        torch.jit.save(torch.jit.script(counted), str(file))
    assert contents_of_script(file) == BOTH


def field(number: int, *parts: bytes) -> bytes:
    """A field of a protocol-buffer message that holds bytes."""
    data = b"".join(parts)
    length, encoded = len(data), b""
    while length >= 0x80:
        encoded, length = encoded + bytes([length & 0x7F | 0x80]), length >> 7
    tag = number << 3 | 2
    head = bytes([tag]) if tag < 0x80 else bytes([tag & 0x7F | 0x80, tag >> 7])
    return head + encoded + bytes([length]) + data


def node(name: bytes, *attributes: bytes) -> bytes:
    return field(1, field(1, b"input"), field(4, name), *attributes)


def onnx_model(*nodes: bytes, functions: bytes = b"") -> bytes:
    version, weights = b"\x08\x09", field(5, bytes(300))
    return version + field(7, *nodes, weights) + functions


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (onnx_model(node(b"MatMul"), node(b"Relu")), NEITHER),
        (onnx_model(node(b"MatMul"), node(b"If")), CONDITIONAL),
        (onnx_model(node(b"Scan")), LOOP),
        (onnx_model(node(b"If", field(5, field(6, node(b"Loop"))))), BOTH),
        (onnx_model(node(b"F"), functions=field(25, field(7, field(4, b"Loop")))), LOOP),
    ],
)
def test_onnx_models_show_their_operators(tmp_path: Path, data: bytes, expected: Contents) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(data)
    assert contents_of_onnx(file) == expected


@pytest.mark.parametrize("data", [b"", b"hello", b"\x3a\x7f", b"\x3a"])
def test_other_bytes_are_no_onnx_model(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(data)
    with pytest.raises(UnreadableError, match="not an ONNX model"):
        contents_of_onnx(file)


def write_programs(folder: Path) -> None:
    (folder / "inside").mkdir()
    (folder / "inside" / "one.py").write_text(model("return x if x.sum() > 0 else -x"))
    (folder / "two.py").write_text(model("return x"))
    (folder / "three.py").write_text("import torch\n")
    (folder / "four.onnx").write_bytes(onnx_model(node(b"Loop")))
    (folder / "weights.pt").write_bytes(b"weights")


def test_the_table_has_a_line_for_each_kind_and_one_for_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_programs(tmp_path)
    output = io.StringIO()
    assert run_stats([tmp_path], Console(file=output, width=100)) == 0
    rows = [line.split() for line in output.getvalue().splitlines()]
    assert rows == [
        ["programs", "count", "conditionals", "loops", "neither"],
        ["ONNX", "1", "0", "(0%)", "1", "(100%)", "0", "(0%)"],
        ["Python", "2", "1", "(50%)", "0", "(0%)", "1", "(50%)"],
        ["all", "3", "1", "(33%)", "1", "(33%)", "1", "(33%)"],
        ["1", "Python", "file", "has", "no", "model:", "not", "counted."],
    ]
    assert capsys.readouterr().err == ""


def test_what_cannot_be_read_is_named_and_makes_it_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_programs(tmp_path)
    (tmp_path / "wrong.py").write_text("def (")
    (tmp_path / "wrong.pt2").write_text("weights")
    (tmp_path / "notes.txt").write_text("notes")
    names = ["two.py", "wrong.pt2", "wrong.py", "weights.pt", "missing.py", "notes.txt"]
    assert main(["stats", *(str(tmp_path / name) for name in names)]) == 1
    captured = capsys.readouterr()
    assert "Python" in captured.out
    for name, reason in {
        "wrong.py": "not Python",
        "wrong.pt2": "not an exported program",
        "weights.pt": "not a TorchScript archive",
        "missing.py": "there is no such file or folder",
        "notes.txt": "its name ends in none of .py",
    }.items():
        assert f"penstock stats: cannot read {tmp_path / name}: {reason}" in captured.err
    assert "Traceback" not in captured.err
