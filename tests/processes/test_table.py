"""Programs of the table over two processes, every other torch call on the other rank, and programs
that users have placed: values and gradients are those of plain Python.

The two processes are started once for all programs.
"""

import json
from pathlib import Path

import pytest

from tests.placed_programs import PLACED
from tests.processes.launch import run_processes
from tests.semantics.programs import PROGRAMS

SCRIPT = Path(__file__).parent / "scripts" / "table.py"

#: Programs that exchange most, and whose control flow others have too. They agree as well:
#: `scripts/table.py` without arguments runs them all.
LEFT_OUT = {
    "adaptive_computation",
    "adaptive_step_ode",
    "attention_in_a_loop",
    "causal_attention",
    "convolved",
    "cross_attention",
    "cut_off_slices",
    "early_exit",
    "fold_over_children",
    "infinite_on_padding",
    "lstm_by_scan",
    "lstm_by_tensor_array",
    "map_over_children",
    "pooled",
    "prefixes_in_a_loop",
    "slices_of_slices",
    "token_losses",
    "two_experts_of_eight",
}
NAMES = [name for name in PROGRAMS if name not in LEFT_OUT]
NAMES += [f"placed:{name}" for name in PLACED]


@pytest.fixture(scope="module")
def faults(tmp_path_factory):
    """For each program what each rank has found to differ."""
    folder = tmp_path_factory.mktemp("table")
    texts = run_processes(SCRIPT, 2, folder, 400.0, NAMES)
    lines = [line for text in texts for line in text.splitlines() if line.startswith("{")]
    found: dict[str, list[str]] = {}
    for entry in map(json.loads, lines):
        found.setdefault(entry["name"], []).append(entry["fault"])
    return found


def test_what_is_left_out_is_in_the_table():
    assert set(PROGRAMS) >= LEFT_OUT


@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients_agree_with_plain_python_on_both_ranks(faults, name):
    assert faults[name] == ["", ""]
