"""Every benchmark script runs, at a tiny size, and records what it measured."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import benchmarks
from benchmarks.__main__ import FULL, QUICK

TINY = {
    "plan": "--trees 1 3",
    "growth": "--trees 1 3 --hidden 4",
    "tree_inference": "--hidden 4 --batches 2 --no-compiled --no-peers",
    "tree_training": "--hidden 4 --batches 2 --no-compiled --no-peers",
    "tree_gpu": "--hidden 4 --batches 2 --no-compiled",
    "child_sum": "--batches 2 --embedding 4 --hidden 3 --similarity 2 --no-compiled --no-peers",
    "lstm": "--batch 3 --hidden 4 --lengths 2 5 --no-compiled",
    "lstm_gpu": "--batch 3 --hidden 4 --lengths 2 5 --device cpu",
    "counted_loop": "--batches 1 3 --length 4 --small-width 2 --large-width 3",
    "while_gpu": "--iterations 5 --instances 5 --device cpu",
    "parallel_iterations": "--bounds 1 2 --iterations 3 --batch 2 --width 3 --layers 1",
    "distributed_loop": "--processes 2 --iterations 3 --counted 3",
    "pipeline_lstm": "--layers 2 --hidden 3 --batch 2 --length 3",
    "in_graph_training": "--agents 2 --steps 3",
    "gradient_overhead": "--batch 4 --hidden 4",
    "memory": "--lengths 20 --batch 3 --hidden 4 --indexed-lengths 3 6 --width 2",
    "swap_lstm": "--lengths 3 6 --batch 2 --hidden 3 --inputs 2 --budget 200B",
    "swap_heavy": "--lengths 3 --batch 2 --hidden 3 --budget 100B",
    "swap_tree": "--leaves 6 --trees 3 --hidden 4 --vocabulary 9",
    "long_loop": "--iterations 40 --timed-iterations 5 --instances 3 --width 2",
    "native_loops": "--instances 5 --iterations 20",
    "tracing": "--programs newton gru_outputs --calls 3",
    "recording": "--width 3 --calls 20 --fibers 5",
    "ragged_attention": "--hidden 3 --batch 3 --vocabulary 5 --lengths 1 4 --eager --no-compiled",
    "granularity": "--batch 2 --hidden 3",
    "eager_map": "--batches 2 --embedding 4 --hidden 3 --similarity 2",
    "profile_overhead": "--hidden 4 --batches 2",
}

#: A candidate of Penstock's that each table of results has a line for.
CANDIDATES = {
    "distributed_loop": "predicate",
    "plan": "levels of b+",
    "tracing": "f.map([x])",
    "profile_overhead": "profiled",
    "recording": "a function marked @ps.unit",
    "granularity": "op",
    "eager_map": "ps.map, auto",
    "lstm": "penstock, while",
    "swap_lstm": "penstock, swap",
    "swap_heavy": "penstock, swap",
    "swap_tree": "penstock, swap",
    "lstm_gpu": "penstock, scan, mapped",
    "counted_loop": "penstock, for range",
    "in_graph_training": "penstock, in the graph",
}

#: Scripts that compare no candidates, and so draw no bars.
WITHOUT_BARS = {
    "distributed_loop",
    "granularity",
    "recording",
    "swap_heavy",
    "swap_lstm",
    "tracing",
}


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("PENSTOCK_DATA", raising=False)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_every_script_is_known() -> None:
    folder = Path(benchmarks.__file__).parent
    scripts = {path.stem for path in folder.glob("*.py") if "def main(" in path.read_text()}
    scripts.remove("__main__")
    assert scripts == TINY.keys() == QUICK.keys() == FULL.keys()


@pytest.mark.parametrize("name", TINY)
def test_a_script_prints_its_claim_and_records_what_it_measured(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--record", str(tmp_path / "results.md"), "--out", str(tmp_path / "out")]
    script = importlib.import_module(f"benchmarks.{name}")
    script.main([*TINY[name].split(), "--rounds", "1", *places])
    claim = script.__doc__.splitlines()[0]
    printed = capsys.readouterr().out
    assert printed.startswith(claim)
    if "left out: there is no CUDA device" in printed:
        pytest.skip("left out: there is no CUDA device")
    recorded = (tmp_path / "results.md").read_text()
    assert f"## {name} (" in recorded
    assert claim in recorded
    assert f"| {CANDIDATES.get(name, 'penstock')} |" in recorded
    assert str(tmp_path) not in recorded
    (kept,) = (tmp_path / "out").glob(f"{name}-*.json")
    assert json.loads(kept.read_text())["results"]
    assert kept.with_suffix(".svg").exists() == (name not in WITHOUT_BARS)
