"""One rank of a job in which much goes wrong: each scenario in a process group of its own.

Ranks 0 and 1 survive; each of the others is killed in one scenario. A survivor prints what it got
in each scenario, as one line of JSON.
"""

import contextlib
import json
import os
import signal
import threading
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

import penstock as ps
from penstock.distributed.processes import current_transport, process_group
from penstock.distributed.run import PlacedRun

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
LONG, SHORT = timedelta(seconds=40), timedelta(seconds=2)


@ps.function
def chain(x, steps):
    """A loop around all ranks of a group of three, or of two."""

    def body(k, y):
        with ps.device("rank:1"):
            y = torch.tanh(y * 1.5)
        with ps.device(f"rank:{LAST}"):
            y = torch.sin(y) + 0.1
        with ps.device("rank:0"):
            return k + 1, y * 1.1

    return ps.while_loop(lambda k, y: k < steps, body, (0, x))[1]


@ps.function
def converge(x):
    """A loop whose predicate is computed by the last rank."""

    def body(y):
        with ps.device("rank:0"):
            return (y * 0.5,)

    def go_on(y):
        with ps.device(f"rank:{LAST}"):
            return y.sum() > 0.1

    return ps.while_loop(go_on, body, (x,))[0]


@ps.function
def look_up(table, index):
    """Rank 1 looks into a table, with whatever index it gets."""
    with ps.device("rank:1"):
        row = torch.nn.functional.embedding(index, table)
    with ps.device("rank:0"):
        return row.sum() * 2


@ps.function
def look_up_on_a_queue(table, index):
    """The same by one of two devices of rank 1."""
    with ps.device("rank:1/cpu:0"):
        row = torch.nn.functional.embedding(index, table)
    with ps.device("rank:1/cpu:1"):
        other = torch.sin(table.sum())
    with ps.device("rank:0"):
        return row.sum() * other


@ps.function
def read(x, index):
    """The planner finds an index that is out of range, on every rank."""
    with ps.device("rank:1"):
        return ps.TensorArray.unstack(x * 2).read(index) + 1


@ps.function
def noisy(x):
    with ps.device("rank:1"):
        x = torch.nn.functional.dropout(x, 0.5, training=True)
    with ps.device("rank:0"):
        return x * 2


X = torch.linspace(0.1, 1.0, 6).reshape(3, 2)
STEPS = [1, 3, 2]
#: The last rank of the group at work.
LAST = 1


# ---- two ranks that live on ----------------------------------------------------------------------


def other_rows():
    chain.map(X if RANK == 0 else X.flip(0), STEPS)


def other_steps():
    chain.map(X, STEPS if RANK == 0 else STEPS[::-1])


def other_seed():
    torch.manual_seed(RANK)
    noisy.map(X)


def other_program():
    factor = 2.0 + RANK

    @ps.function
    def scale(x):
        with ps.device("rank:1"):
            return x * factor

    scale.map(X)


def other_order():
    x = X.clone().requires_grad_()
    first = chain.map(x, STEPS, out="stack")
    if RANK == 0:
        first.sum().backward()
    else:
        chain.map(x, STEPS)


def other_outputs():
    x = X.clone().requires_grad_()
    results = chain.map(x, STEPS)
    sum(result.sum() for result in results[: 3 - RANK]).backward()


def other_leaves(create_graph=False):
    """Rank 0 asks for the gradients of an input, too; both ask for those of a weight."""
    x = X.clone().requires_grad_(RANK == 0)
    weight = torch.ones(2, requires_grad=True)

    @ps.function
    def scale(x):
        with ps.device("rank:0"):
            x = torch.sin(x * weight)
        with ps.device("rank:1"):
            return x * weight

    result = scale.map(x, out="stack").sum()
    torch.autograd.grad(result, weight, create_graph=create_graph)


def other_leaves_twice():
    other_leaves(create_graph=True)


def bad_index():
    look_up.map(ps.shared(torch.ones(3, 2)), torch.tensor([0, 7, 1]))


def other_index():
    """Rank 1 fails, before any message, since it has another index than rank 0."""
    look_up.map(ps.shared(torch.ones(3, 2)), torch.tensor([0, 7 if RANK else 2, 1]))


def other_index_on_a_queue():
    """The same where devices and messages of rank 1 have threads of their own."""
    indices = torch.tensor([0, 7 if RANK else 2, 1])
    look_up_on_a_queue.map(ps.shared(torch.ones(3, 2)), indices)


def interrupted_while_planning():
    if RANK == 0:
        chain.map(X, [2, 2, 2])
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlacedRun, "plan_window", interrupt)
        with contextlib.suppress(KeyboardInterrupt):
            chain.map(X, [2, 2, 2])


def interrupt(*args):
    raise KeyboardInterrupt


def fault_of_an_instance():
    read.map([X, X], [1, 5])


def failure_in_a_new_branch():
    """Rank 1 fails where a plan that is kept goes on in another way than before."""
    converge.map(X)
    transport = current_transport()
    if RANK == 1:
        told, tell = [], transport.tell
        transport.tell = lambda *args: (told.append(1), tell(*args))[1] if len(told) < 5 else fail()
    converge.map(X * 8)


def fail():
    raise ValueError("out of luck")


def the_branch_once_more():
    found = converge.map(X * 8)
    with ps.set_eager(True):
        torch.testing.assert_close(list(found), [converge(row) for row in X * 8])


def two_threads():
    """Calls go one after the other; those that come in another order on each rank are refused."""
    group, found = current_transport().group, []

    def call(function, *arguments):
        with process_group(group):
            found.append(attempt(lambda: function.map(X, *arguments)))

    calls = [(chain, STEPS), (converge,)]
    threads = [threading.Thread(target=call, args=each) for each in calls[:: 1 - 2 * RANK]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if any(name not in ("", "AgreementError") for name, _, _ in found):
        raise RuntimeError(str(found))


def late_message():
    transport = current_transport()
    if RANK == 1:
        send = transport.send
        transport.send = lambda *args: (time.sleep(4), send(*args))
    chain.map(X, STEPS)


def no_call():
    if RANK == 0:
        chain.map(X, STEPS)


def rank_that_is_not_there():
    @ps.function
    def far(x):
        with ps.device("rank:5"):
            return x * 2

    far.map(X)


# ---- three ranks, the last of which is killed ----------------------------------------------------


def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)


def killed_in_forward():
    if RANK > 1:
        current_transport().send = die
    chain.map(X, STEPS)


def killed_in_backward():
    x = X.clone().requires_grad_()
    result = chain.map(x, STEPS, out="stack")
    if RANK > 1:
        current_transport().send = die
    result.sum().backward()


def killed_before_its_predicate():
    if RANK > 1:
        current_transport().tell = die
    converge.map(X)


#: Scenario, ranks, time limit.
SCENARIOS = [
    (other_rows, [0, 1], LONG),
    (other_steps, [0, 1], LONG),
    (other_seed, [0, 1], LONG),
    (other_program, [0, 1], LONG),
    (other_order, [0, 1], LONG),
    (other_outputs, [0, 1], LONG),
    (other_leaves, [0, 1], LONG),
    (other_leaves_twice, [0, 1], LONG),
    (rank_that_is_not_there, [0, 1], LONG),
    (other_index, [0, 1], LONG),
    (other_index_on_a_queue, [0, 1], LONG),
    (interrupted_while_planning, [0, 1], LONG),
    (fault_of_an_instance, [0, 1], LONG),
    (bad_index, [0, 1], LONG),
    (failure_in_a_new_branch, [0, 1], LONG),
    (the_branch_once_more, [0, 1], LONG),
    (two_threads, [0, 1], LONG),
    (late_message, [0, 1], SHORT),
    (no_call, [0, 1], SHORT),
    (killed_in_forward, [0, 1, 2], LONG),
    (killed_in_backward, [0, 1, 3], LONG),
    (killed_before_its_predicate, [0, 1, 4], LONG),
]


def attempt(scenario):
    began = time.monotonic()
    try:
        scenario()
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - began
    return "", "", time.monotonic() - began


def main():
    global LAST
    dist.init_process_group(
        "gloo", init_method=os.environ["RENDEZVOUS"], rank=RANK, world_size=SIZE, timeout=LONG
    )
    groups = [dist.new_group(ranks, timeout=limit) for _, ranks, limit in SCENARIOS]
    for (scenario, ranks, _), group in zip(SCENARIOS, groups, strict=True):
        if RANK not in ranks:
            continue
        LAST = len(ranks) - 1
        torch.manual_seed(0)
        with process_group(group):
            name, text, seconds = attempt(scenario)
            again = attempt(lambda: chain.map(X, STEPS)) if scenario is not no_call else ("",)
        found = {"name": scenario.__name__, "error": name, "text": text, "seconds": seconds}
        print(json.dumps({**found, "again": again[0]}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
    print("ended", flush=True)
