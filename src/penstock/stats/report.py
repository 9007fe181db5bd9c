"""`penstock stats`: a table of programs by kind, with how many have conditionals and loops."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from penstock.stats.contents import Contents, UnreadableError
from penstock.stats.onnx_graphs import contents_of_onnx
from penstock.stats.python_source import contents_of_source

Reader = Callable[[Path], Contents | None]


def _export(file: Path) -> Contents:
    from penstock.stats.torch_graphs import contents_of_export  # torch takes seconds to load

    return contents_of_export(file)


def _script(file: Path) -> Contents:
    from penstock.stats.torch_graphs import contents_of_script

    return contents_of_script(file)


#: By the end of a file's name: what it is called in the table, and what reads it.
KINDS: dict[str, tuple[str, Reader]] = {
    ".py": ("Python", contents_of_source),
    ".pt2": ("torch.export", _export),
    ".pt": ("TorchScript", _script),
    ".ts": ("TorchScript", _script),
    ".onnx": ("ONNX", contents_of_onnx),
}

#: Not looked for in folders: most files of this name hold weights.
_ONLY_BY_NAME = ".pt"


def run_stats(paths: Sequence[Path], console: Console | None = None) -> int:
    """Print the table; 1 if something could not be read, else 0."""
    console = console or Console(soft_wrap=True)
    found: dict[str, list[Contents]] = defaultdict(list)
    without_model, refused = 0, []
    for file in track(_files(paths), "reading", console=console, disable=not console.is_terminal):
        try:
            kind, contents = _read(file)
        except (UnreadableError, OSError) as error:
            refused.append(f"{file}: {getattr(error, 'strerror', None) or error}")
            continue
        if contents is None:
            without_model += 1
        else:
            found[kind].append(contents)
    console.print(_table(found))
    if without_model:
        what = "1 Python file has" if without_model == 1 else f"{without_model} Python files have"
        console.print(f"{what} no model: not counted.")
    for line in refused:
        print(f"penstock stats: cannot read {line}", file=sys.stderr)
    return 1 if refused else 0


def _files(paths: Sequence[Path]) -> list[Path]:
    """The files themselves, and what is to be read in folders, each once, in order."""
    files: dict[Path, None] = {}
    for path in paths:
        inside = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in inside:
            if file == path or (file.suffix in KINDS and file.suffix != _ONLY_BY_NAME):
                files[file] = None
    return list(files)


def _read(file: Path) -> tuple[str, Contents | None]:
    if not file.exists():
        raise UnreadableError("there is no such file or folder")
    if file.suffix not in KINDS:
        raise UnreadableError(f"its name ends in none of {', '.join(KINDS)}")
    kind, reader = KINDS[file.suffix]
    return kind, reader(file)


def _table(found: dict[str, list[Contents]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("programs", "count", "conditionals", "loops", "neither"):
        table.add_column(name, justify="left" if name == "programs" else "right")
    rows = dict(sorted(found.items()))
    if len(rows) != 1:
        rows["all"] = [contents for kind in found.values() for contents in kind]
    for kind, programs in rows.items():
        counts = [
            sum(contents.has_conditional for contents in programs),
            sum(contents.has_loop for contents in programs),
            sum(not any(contents) for contents in programs),
        ]
        table.add_row(kind, str(len(programs)), *(_share(n, len(programs)) for n in counts))
    return table


def _share(count: int, whole: int) -> str:
    return f"{count} ({count / whole:.0%})" if whole else "0"
