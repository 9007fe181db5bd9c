"""Peers run in processes of their own, agree with the model, and fail in a line of the table."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.baselines import levels, tree_lstm
from benchmarks.baselines.training import loss_and_gradients
from benchmarks.harness import TimesItself, compare
from benchmarks.peers import environments, process
from benchmarks.peers.install import main as install
from benchmarks.peers.loop_problem import PROGRAMS
from benchmarks.peers.process import peers_for
from benchmarks.peers.tree_problem import PARAMETERS, Forest, levels_of
from benchmarks.tree_subject import TreeSubject
from penstock.data import random_binary_trees

WORKER = """
import sys
from benchmarks.peers.serve import limit_threads, serve
limit_threads(int(sys.argv[2]))

def prepare(problem):
    print("not an answer")
    def results():
        return [problem["x"] ** 2, problem["x"].sum()]
    return results, results

serve(prepare, "Squares 1.0")
"""


@pytest.fixture
def squares(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A worker in this environment in the place of a peer."""
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    monkeypatch.setattr(process, "installed", lambda: ["jax"])
    monkeypatch.setattr(process, "_command", lambda name, work: [sys.executable, str(script)])
    return script


def test_a_peer_computes_and_times_itself(squares: Path) -> None:
    with peers_for("loops", {"x": np.array([1.0, 2.0, 3.0])}) as (peers, missing):
        assert missing == {}
        peer = peers["Squares 1.0 (peer)"]
        assert isinstance(peer, TimesItself)
        result = compare(
            "claim",
            {"here": lambda: (torch.tensor([1.0, 4, 9]).double(), torch.tensor(6.0).double())}
            | peers,
            reference="here",
            rounds=2,
            least_seconds=0.0,
        )
        assert all(seconds > 0 for seconds in result["Squares 1.0 (peer)"].seconds)


def test_a_peer_that_fails_is_missing_with_its_last_words(squares: Path) -> None:
    squares.write_text("raise ValueError('no luck')")
    with peers_for("loops", {"x": np.zeros(1)}) as (peers, missing):
        assert peers == {}
        assert missing == {"jax": "ValueError: no luck"}


def test_peers_run_only_where_wanted_and_where_they_have_a_program(squares: Path) -> None:
    with peers_for("loops", {"x": np.zeros(1)}, wanted=False) as (peers, _):
        assert peers == {}
    with peers_for("unheard_of", {"x": np.zeros(1)}) as (peers, _):
        assert peers == {}


def test_a_peer_is_installed_where_its_environment_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PENSTOCK_PEERS", str(tmp_path))
    assert environments.installed() == []
    (tmp_path / "jax" / "bin").mkdir(parents=True)
    environments.python_of("jax").touch()
    assert environments.installed() == ["jax"]


def test_only_known_peers_can_be_installed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        install(["theano"])
    assert stop.value.code == 2
    assert "unknown: theano; there are tensorflow, jax, dynet" in capsys.readouterr().err


def test_peers_order_nodes_as_the_baselines_do() -> None:
    trees = random_binary_trees(5, vocabulary=20, seed=0)
    ours, theirs = levels.levels_of(trees), levels_of(Forest(**levels.forest_arrays(trees)))
    assert theirs.tokens.tolist() == ours.tokens.tolist()
    assert theirs.roots.tolist() == ours.roots.tolist()
    assert theirs.left.tolist() == torch.cat([left for left, _ in ours.children]).tolist()
    assert theirs.right.tolist() == torch.cat([right for _, right in ours.children]).tolist()
    assert np.diff(theirs.bounds).tolist() == [len(left) for left, _ in ours.children]


def test_the_parameters_are_those_of_the_model() -> None:
    model = tree_lstm.TreeLSTM(vocabulary=20, embedding=5, hidden=4)
    names = tuple(name for name, _ in model.named_parameters())
    assert names == PARAMETERS


def test_the_scalar_loops_are_what_they_say() -> None:
    counting, collatz, relaxation = (function for function, _ in PROGRAMS.values())
    assert counting(3.0) == 3.0
    assert [collatz(n) for n in (1, 2, 3, 27)] == [0, 1, 7, 111]
    assert 0 < relaxation(2.0, 0.1) <= 0.01


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.parametrize("name", environments.REQUIREMENTS)
def test_an_installed_peer_agrees_with_the_model(
    name: str, training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name not in environments.installed():
        pytest.skip(f"{name} is not installed: python -m benchmarks.peers.install {name}")
    monkeypatch.setattr(process, "installed", lambda: [name])
    torch.manual_seed(0)
    model = tree_lstm.TreeLSTM(vocabulary=20, embedding=5, hidden=4)
    trees, weights = random_binary_trees(3, vocabulary=20, seed=0), torch.randn(4)
    subject = TreeSubject(model, trees)
    forward = subject.forwards()["by level (b)"]
    expected = loss_and_gradients(model, forward, weights) if training else forward().detach()
    with subject.peers(weights, training=training, wanted=True) as (peers, missing):
        assert missing == {}
        (peer,) = peers.values()
        torch.testing.assert_close(peer(), expected, rtol=1e-4, atol=1e-4)
