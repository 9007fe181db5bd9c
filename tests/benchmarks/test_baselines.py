"""The LSTM and the branching layers compute the same by hand, one by one and as programs."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.baselines import branching, lstm, tree_lstm
from benchmarks.baselines.compiled import compiled_twin, compiler_fault
from benchmarks.baselines.levels import levels_of
from benchmarks.baselines.products import Layer, Products, operations
from benchmarks.baselines.training import Forward, loss_and_gradients, training_step
from benchmarks.programs.branching import branching_program
from benchmarks.programs.lstm import looping_lstm, lstm_program, scanned_lstm
from penstock.data import random_binary_trees


def assert_all_agree(model: torch.nn.Module, ways: list[Forward], width: int) -> None:
    weights = torch.randn(width)
    first, *others = [loss_and_gradients(model, way, weights) for way in ways]
    for other in others:
        torch.testing.assert_close(other, first)


def test_all_ways_to_run_the_lstm_agree() -> None:
    torch.manual_seed(0)
    model = lstm.LSTM(3, 4)
    sequences = lstm.random_sequences(6, (1, 9), 3, seed=0)
    program = lstm_program(model)
    ways: list[Forward] = [
        lambda: lstm.per_sample(model, sequences),
        lambda: lstm.shrinking(model, sequences),
        lambda: lstm.masked(model, sequences),
        lambda: scanned_lstm(model).map(sequences, out="stack"),
        lambda: looping_lstm(model).map(sequences, out="stack"),
        lambda: program.map(sequences, out="stack"),
    ]
    assert_all_agree(model, ways, 4)


def test_the_librarys_lstm_has_the_results_and_gradients_of_the_model() -> None:
    torch.manual_seed(0)
    model, weights = lstm.LSTM(3, 4), torch.randn(4)
    library = lstm.LibraryLSTM(model)
    sequences = lstm.random_sequences(6, (1, 9), 3, seed=0)
    steps = torch.randn(5, 6, 3)
    for theirs, ours in (
        (lambda: library.packed(sequences), lambda: lstm.shrinking(model, sequences)),
        (lambda: library.unrolled(steps), lambda: lstm.unrolled(model, steps)),
    ):
        torch.testing.assert_close(
            library.training_step(theirs, weights), training_step(model, ours, weights)
        )


def test_the_products_of_an_lstm_have_the_rows_that_are_live() -> None:
    model = lstm.LSTM(3, 4)
    assert lstm.layers(model, [1, 3, 2]) == [
        Layer(6, 3, 16, learns_inputs=False),
        Layer(3, 4, 16),
        Layer(2, 4, 16),
        Layer(1, 4, 16),
    ]


def test_every_product_of_training_is_counted() -> None:
    layers = [Layer(2, 3, 5), Layer(7, 3, 5, learns_inputs=False)]
    assert operations(layers, training=False) == 2 * (2 + 7) * 15
    assert operations(layers, training=True) == 2 * (3 * 2 + 2 * 7) * 15
    products = Products(layers)
    with FlopCounterMode(display=False) as counted:
        products.forward_and_backward()
    assert counted.get_total_flops() == operations(layers, training=True)


def test_all_ways_to_run_the_branching_layers_agree() -> None:
    torch.manual_seed(0)
    model = branching.BranchingLayers(depth=3, width=4)
    rows = torch.randn(9, 4)
    program = branching_program(model)
    ways: list[Forward] = [
        lambda: branching.per_sample(model, rows),
        lambda: branching.grouped(model, rows),
        lambda: program.map(rows, out="stack"),
    ]
    assert_all_agree(model, ways, 4)


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert compiler_fault() == "no C++ compiler was found"


def test_a_compiler_that_fails_is_named_by_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(function: object, dynamic: bool) -> None:
        raise OSError("no Python.h")

    monkeypatch.setattr(shutil, "which", lambda name: name)
    monkeypatch.setattr(torch, "compile", fail)
    assert compiler_fault() == "torch.compile failed with OSError"


def test_the_compiled_twin_has_the_weights_of_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: function)
    model = tree_lstm.TreeLSTM(vocabulary=20, embedding=3, hidden=4)
    twin = compiled_twin(model, "cell")
    assert all(map(torch.Tensor.is_set_to, twin.parameters(), model.parameters()))
    levels = levels_of(random_binary_trees(2, vocabulary=20, seed=0))
    with torch.no_grad():
        model.cell_gates.weight.mul_(2)
        expected = tree_lstm.by_level(model, levels)
        torch.testing.assert_close(tree_lstm.by_level(twin, levels), expected)
    assert "cell" not in vars(model)
