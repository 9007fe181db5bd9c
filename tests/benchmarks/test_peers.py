"""Peers run in processes of their own, agree with the model, and fail in a line of the table."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.baselines import child_sum, levels, segments, tree_lstm
from benchmarks.baselines.training import loss_and_gradients
from benchmarks.harness import TimesItself, compare
from benchmarks.pair_subject import PairSubject
from benchmarks.peers import environments, pair_problem, process
from benchmarks.peers.install import main as install
from benchmarks.peers.loop_problem import PROGRAMS
from benchmarks.peers.parameters import fixed_of, trained_of
from benchmarks.peers.process import parameters_in, peers_for
from benchmarks.peers.tree_problem import Forest, levels_of
from benchmarks.tree_subject import TreeSubject
from penstock.data import Tree, random_binary_trees, random_trees
from penstock.data.sick import SentencePair

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


#: Among them leaves, and words of many children.
_TREES = [
    Tree.from_nested(3),
    Tree.from_nested((1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11), inner=0),
    *random_trees(4, max_arity=4, nodes=(2, 15), vocabulary=20, seed=0),
]
PAIRS = [
    SentencePair(left, right, 1 + 0.7 * number)
    for number, (left, right) in enumerate(pairwise(_TREES))
]


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


def test_words_of_pairs_are_ordered_by_height_and_children_by_parent() -> None:
    # 2 has the children 0 and 3; 0 has 1, 3 has 4. The other tree is one word.
    trees = [Tree.from_parents([2, 0, -1, 2, 3], [13, 11, 14, 12, 15]), Tree.from_nested(16)]
    found = pair_problem.levels_of(pair_problem.Forest(**segments.forest_arrays(trees)))
    assert found.tokens.tolist() == [11, 15, 16, 13, 12, 14]
    assert found.bounds.tolist() == [0, 3, 5, 6]
    assert found.children.tolist() == [0, 1, 3, 4]
    assert found.parents.tolist() == [3, 4, 5, 5]
    assert found.child_bounds.tolist() == [0, 2, 4]
    assert found.roots.tolist() == [5, 2]


def test_the_divergence_of_pairs_is_that_of_the_model() -> None:
    targets = child_sum.targets_of(PAIRS)
    output = torch.randn(len(PAIRS), child_sum.SCORES).log_softmax(1)
    entropy = pair_problem.entropy_of(targets.numpy())
    found = (entropy - (targets * output).sum()) / len(PAIRS)
    torch.testing.assert_close(found, child_sum.loss_of(output, targets))


def test_a_problem_says_which_parameters_are_trained_in_the_order_of_the_model() -> None:
    model = child_sum.Relatedness(20, embedding=5, hidden=4, similarity=3)
    problem = parameters_in(model)
    assert list(fixed_of(problem)) == ["embedding.weight"]
    names = [name for name, _ in model.named_parameters()]
    assert list(trained_of(problem)) == names[1:]


def test_the_scalar_loops_are_what_they_say() -> None:
    collatz, relaxation = (function for function, _ in PROGRAMS.values())
    assert [collatz(n) for n in (1, 2, 3, 27)] == [0, 1, 7, 111]
    assert abs(relaxation(2.0, 0.5, 0.1) - 0.5) <= 1e-4


@pytest.fixture(params=environments.REQUIREMENTS)
def only(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """An installed peer, and no other."""
    name: str = request.param
    if name not in environments.installed():
        pytest.skip(f"{name} is not installed: python -m benchmarks.peers.install {name}")
    monkeypatch.setattr(process, "installed", lambda: [name])
    return name


@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.usefixtures("only")
def test_an_installed_peer_agrees_with_the_model(training: bool) -> None:
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


@pytest.mark.parametrize("trains_embedding", [True, False], ids=["all trained", "words fixed"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
@pytest.mark.usefixtures("only")
def test_an_installed_peer_agrees_on_pairs(training: bool, trains_embedding: bool) -> None:
    torch.manual_seed(0)
    sizes = {"embedding": 5, "hidden": 4, "similarity": 3}
    model = child_sum.Relatedness(20, **sizes, trains_embedding=trains_embedding)
    subject = PairSubject(model, PAIRS)
    run = subject.train if training else subject.infer
    with subject.peers(training=training, wanted=True) as (peers, missing):
        assert missing == {}
        (peer,) = peers.values()
        torch.testing.assert_close(peer(), run(subject.per_sample), rtol=1e-4, atol=1e-4)
