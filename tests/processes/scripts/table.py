"""One rank of two that run programs of the table, with every other torch call on the other rank.

Prints one line of JSON for each program: what differs from plain Python, if anything does.
"""

import json
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from tests.placing import TWO_RANKS, placed_in_turn
from tests.semantics.agreement import ask_for_gradients, assert_agree, gradients
from tests.semantics.programs import PROGRAMS
from tests.semantics.ways import run_map, run_plain


def compare(program):
    """Raise where values or gradients are not those of plain Python."""
    case = program.case(torch.float64 if program.differentiable else program.dtypes[0])
    torch.manual_seed(3)
    if not program.differentiable:
        with torch.no_grad():
            assert_agree(run_map(case), run_plain(case), "outputs")
        return
    ask_for_gradients(case)
    expected, actual = run_plain(case), run_map(case)
    assert_agree(actual, expected, "outputs")
    compare_gradients(case, gradients(case, actual), gradients(case, expected))


def compare_gradients(case, found, expected):
    """Inputs have their gradients on both ranks, weights on those that use them."""
    for name, grad in expected.items():
        ranks = [found[name]]
        if name in case.weights:
            ranks = [None] * dist.get_world_size()
            dist.all_gather_object(ranks, found[name])
            ranks = [mine for mine in ranks if mine is not None]
            assert bool(ranks) == (grad is not None), name
        for mine in ranks:
            assert (mine is None) == (grad is None), name
            if grad is not None:
                assert_agree(mine, grad, name)


def main(names):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "gloo",
        init_method=os.environ["RENDEZVOUS"],
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )
    for name in names:
        fault = ""
        try:
            with placed_in_turn(TWO_RANKS):
                compare(PROGRAMS[name])
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
        print(json.dumps({"name": name, "fault": fault}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:] or list(PROGRAMS))
