"""One rank of two that run programs of the table, with every other torch call on the other rank,
and programs that users have placed; both under memory policies as well.

Prints one line of JSON for each program: what differs from plain Python, if anything does.
"""

import json
import os
import sys
from datetime import timedelta
from itertools import cycle

import pytest
import torch
import torch.distributed as dist

import penstock as ps
from penstock.distributed.run import Placing
from tests.placed_programs import PLACED
from tests.placing import TWO_RANKS, placed_in_turn
from tests.semantics.agreement import ask_for_gradients, assert_agree, gradients
from tests.semantics.programs import PROGRAMS
from tests.semantics.ways import run_map, run_plain

#: Memory policies that programs of the table are run under in turn, once they have been planned.
POLICIES = [("swap", 300), ("recompute", 300), ("auto", 500)]


def compare(program, policy):
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
    wanted = gradients(case, expected)
    compare_gradients(case, gradients(case, actual), wanted)
    with ps.memory(policy[0], budget=policy[1]):
        actual = run_map(case)
    compare_gradients(case, gradients(case, actual), wanted)


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


def compare_placed(name):
    """The same for a program that names devices, on ranks. Calls that read what an earlier one has
    read follow its plan; others leave it.
    """
    place, planned = ps.device, []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ps, "device", lambda name: place(name.replace("cpu", "rank")))
        new_planner = Placing.new_planner
        patch.setattr(
            Placing, "new_planner", lambda *args: (planned.append(1), new_planner(*args))[1]
        )
        made = PLACED[name]()
        rounds = zip(
            ((1.0, 1), (1.0, 0), (0.3, 1), (1.0, 0)), [("keep", None), *POLICIES], strict=True
        )
        for (scale, most), (policy, budget) in rounds:
            planned.clear()
            with torch.no_grad():
                for tensor in made.tensors:
                    tensor.mul_(scale)
            with ps.memory(policy, budget=budget):
                compare_call(made, is_twice=scale != 1.0)
            assert len(planned) <= most, f"{len(planned)} plans"
            with torch.no_grad():
                for tensor in made.tensors:
                    tensor.div_(scale)


def compare_call(made, is_twice):
    """Values, and gradients of whatever this rank uses; `is_twice`: of gradients."""
    results = [made.function.map(*made.columns)]
    with ps.set_eager(True):
        results.append([made.function(*instance) for instance in made.instances])
    found, expected = [
        [leaf for result in each for leaf in (result if isinstance(result, tuple) else (result,))]
        for each in results
    ]
    assert_agree(found, expected, "outputs")
    grads = []
    for leaves in (found, expected):
        loss = sum((leaf * torch.arange(1.0, leaf.numel() + 1)).sum() for leaf in leaves)
        if is_twice:
            tensors = made.tensors
            first = torch.autograd.grad(loss, tensors, create_graph=True, allow_unused=True)
            loss = loss + sum(grad.square().sum() for grad in first if grad is not None)
        grads.append(torch.autograd.grad(loss, made.tensors, allow_unused=True))
    for place, (mine, grad) in enumerate(zip(*grads, strict=True)):
        ranks = [None] * dist.get_world_size()
        dist.all_gather_object(ranks, mine)
        known = [each for each in ranks if each is not None]
        assert bool(known) == (grad is not None), place
        for each in known:
            assert_agree(each, grad, str(place))


def main(names):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "gloo",
        init_method=os.environ["RENDEZVOUS"],
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=60),
    )
    for name, policy in zip(names, cycle(POLICIES), strict=False):
        fault = ""
        try:
            if name.startswith("placed:"):
                compare_placed(name.removeprefix("placed:"))
            else:
                with placed_in_turn(TWO_RANKS):
                    compare(PROGRAMS[name], policy)
        except Exception as error:
            fault = f"{type(error).__name__}: {error}"
        print(json.dumps({"name": name, "fault": fault}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:] or [*PROGRAMS, *(f"placed:{name}" for name in PLACED)])
