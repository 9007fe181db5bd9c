"""What all benchmark scripts share: options, printing, and where results are kept.

Every run leaves its figures as JSON, and a plot where candidates were compared, in a folder that
git does not see; RESULTS.md changes only when asked for.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.environment import describe_environment
from benchmarks.figures import Figures
from benchmarks.harness import Comparison
from benchmarks.rate_plots import rate_bars
from benchmarks.results import RESULTS, record

#: A script measures one thing after the other, as its options say.
Measure = Callable[[argparse.Namespace], Iterator[Comparison | Figures]]

#: From a title, a line about where it was measured, and comparisons to the text of an SVG file.
Draw = Callable[[str, str, Sequence[Comparison]], str]

OUT = Path(__file__).parent / "out"

#: Options that say nothing about what is measured, or that are said elsewhere.
_PLACES = ("out", "plot", "record", "threads", "device")


def run_script(
    name: str,
    description: str,
    add_options: Callable[[argparse.ArgumentParser], None],
    measure: Measure,
    arguments: Sequence[str] | None,
    draw: Draw = rate_bars,
) -> None:
    """Measure, print each table when it is ready, and keep all of them where the options say.

    `draw` makes the plot of the comparisons, if there are any.
    """
    claim = description.partition("\n")[0]
    options = _parser(name, description, add_options).parse_args(arguments)
    torch.set_num_threads(options.threads)
    # Wide enough for every table, so that a log reads like a terminal.
    console = Console(width=140, markup=False, highlight=False)
    console.print(claim)
    if options.device == "cuda":
        if not torch.cuda.is_available():
            console.print("left out: there is no CUDA device")
            return
        # As training code on such devices does; tolerances of scripts allow for it.
        torch.backends.cuda.matmul.allow_tf32 = True
    found: list[Comparison | Figures] = []
    for result in measure(options):
        found.append(result)
        console.print(_figures(result).table())
    environment = describe_environment(options.device)
    console.print(", ".join(f"{key} {value}" for key, value in environment.items()))
    comparisons = [result for result in found if isinstance(result, Comparison)]
    plot = draw(claim, _where(environment), comparisons) if comparisons else None
    for path in _keep(options.out, name, found, environment, plot):
        console.print(f"written: {path}")
    if options.record:
        tables = [_figures(result) for result in found]
        record(options.record, name, claim, tables, environment, _sizes(options))


def _keep(
    folder: Path,
    name: str,
    found: Sequence[Comparison | Figures],
    environment: Mapping[str, str | int],
    plot: str | None,
) -> Iterator[Path]:
    """Write the seconds of every round, and the plot."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{name}-{environment['device']}-{environment['threads']}".replace(" ", "_")
    kept = {"environment": environment, "results": [asdict(result) for result in found]}
    path = folder / f"{stem}.json"
    path.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
    yield path
    if plot is not None:
        path = folder / f"{stem}.svg"
        path.write_text(plot, encoding="utf-8")
        yield path


def _where(environment: Mapping[str, str | int]) -> str:
    """The line under the title of a plot."""
    shown = ("device", "processor", "threads", "torch", "commit", "date")
    return ", ".join(f"{key} {environment[key]}" for key in shown)


def _figures(result: Comparison | Figures) -> Figures:
    return result if isinstance(result, Figures) else result.figures()


def _parser(
    name: str, description: str, add_options: Callable[[argparse.ArgumentParser], None]
) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"penstock bench {name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--out", type=Path, default=OUT, help="folder for the seconds of every round, and the plot"
    )
    parser.add_argument(
        "--record",
        type=Path,
        nargs="?",
        const=RESULTS,
        help="replace this script's section in a file of results, RESULTS.md unless named",
    )
    # A script that runs elsewhere, or lets one choose, says so in its own options.
    parser.set_defaults(device="cpu")
    add_options(parser)
    return parser


def _sizes(options: argparse.Namespace) -> str:
    """The options that say what was measured, in words."""
    chosen = {key: value for key, value in vars(options).items() if key not in _PLACES}
    return ", ".join(f"{key.replace('_', ' ')} {_in_words(value)}" for key, value in chosen.items())


def _in_words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
