"""One rank of four: programs over two ranks, twice; each checks itself against plain Python."""

import copy
import os
import threading

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import penstock as ps
from penstock.autodiff.reverse import Reversal
from penstock.distributed.queued import QueuedPlacedTapedRun

#: The operations of the two devices of a rank.
SIDES = ("sin", "cos")

torch.set_default_dtype(torch.float64)


class Stages(nn.Module):
    """A loop over two ranks, with a layer on each, one on both, and one that few instances use."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.both = nn.Linear(3, 3)
        self.rare = nn.Linear(3, 3)

    @ps.function
    def score(self, x, n):
        def body(k, h):
            with ps.device("rank:0"):
                h = torch.tanh(self.both(self.first(h)))
            with ps.device("rank:1"):
                return k + 1, torch.sin(self.both(self.second(h)))

        def rare():
            with ps.device("rank:1"):
                return self.rare(h)

        h = ps.while_loop(lambda k, h: k < n, body, (0, x))[1]
        return ps.cond(n > 2, rare, lambda: h)

    def forward(self, x, counts):
        return torch.stack(self.score.map(x, counts))


@ps.function
def climb(x):
    """A recursion that goes from rank to rank until a computed value is small."""

    def deeper():
        with ps.device("rank:1"):
            y = torch.sin(x) * 0.8
        z = climb(y)
        with ps.device("rank:0"):
            return z * y + 0.1

    return ps.cond(x.abs().sum() > 0.5, deeper, lambda: x)


@ps.function
def three_devices(x, n):
    """A loop over a rank that has two devices and one that has one; rows go between all."""

    def body(k, a, b):
        with ps.device("rank:1/cpu:0"):
            a = torch.sin(a * 1.5)
        with ps.device("rank:1/cpu:1"):
            b = torch.cos(b * 0.5) * a.sum()
        with ps.device("rank:0"):
            c = torch.tanh(a + b)
        with ps.device("rank:1/cpu:1"):
            return k + 1, a * 0.9, b * c

    return ps.while_loop(lambda k, a, b: k < n, body, (0, x, x), parallel_iterations=2)[1:]


@ps.function
def side_by_side(x):
    """Two devices of a rank that need not wait for each other."""
    with ps.device("rank:1/cpu:0"):
        a = torch.sin(x)
    with ps.device("rank:1/cpu:1"):
        b = torch.cos(x)
    with ps.device("rank:0"):
        return a * b


def batch(seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(5, 3, generator=generator), [1, 0, 3, 2, 4]


def check(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def gradients_are_where_parameters_are_used(rank):
    torch.manual_seed(1)
    model, plain = Stages(), None
    plain = copy.deepcopy(model)
    x, counts = batch(3)
    x.requires_grad_()
    expected_x = x.detach().clone().requires_grad_()
    with ps.set_eager(True):
        expected = plain(expected_x, counts)
    weights = torch.randn(expected.shape, generator=torch.Generator().manual_seed(5))
    (expected * weights).sum().backward()
    outputs = model(x, counts)
    check(outputs, expected)
    (outputs * weights).sum().backward()
    check(x.grad, expected_x.grad)
    used = {"first": {0}, "second": {1}, "both": {0, 1}, "rare": {1}}
    for name, ranks in used.items():
        found, reference = getattr(model, name), getattr(plain, name)
        if rank in ranks:
            check(found.weight.grad, reference.weight.grad)
            check(found.bias.grad, reference.bias.grad)
        else:
            assert found.weight.grad is None


def a_plan_that_is_kept_serves_other_data():
    torch.manual_seed(1)
    model = Stages()
    for seed in (8, 9, 10):
        x, counts = batch(seed)
        x.requires_grad_()
        expected_x = x.detach().clone().requires_grad_()
        with ps.set_eager(True):
            expected = model(expected_x, counts)
        outputs = model(x, counts)
        check(outputs, expected)
        outputs.square().sum().backward()
        expected.square().sum().backward()
        check(x.grad, expected_x.grad)
        with torch.no_grad():
            check(model(x, counts), expected)


def losses_go_backward_one_by_one():
    torch.manual_seed(1)
    model = Stages()
    x, counts = batch(4)
    x.requires_grad_()
    expected_x = x.detach().clone().requires_grad_()
    with ps.set_eager(True):
        model(expected_x, counts).sum().backward()
    model.zero_grad()
    for row in model.score.map(x, counts):
        row.sum().backward()
    check(x.grad, expected_x.grad)


def what_is_not_used_has_no_gradient(rank):
    torch.manual_seed(1)
    model = Stages()
    x, _ = batch(5)
    outputs = model(x, [0, 1, 2, 0, 1])
    outputs[1:3].sum().backward()
    assert model.rare.weight.grad is None
    assert (model.second.weight.grad is not None) == (rank == 1)


def recursion_over_ranks():
    x, _ = batch(6)
    with ps.set_eager(True):
        expected = [climb(row) for row in x]
    check(climb.map(x), expected)
    with torch.inference_mode():
        check(climb.map(x), expected)


def gradients_of_gradients(rank):
    torch.manual_seed(1)
    model = Stages()
    plain = copy.deepcopy(model)
    x, counts = batch(7)
    x.requires_grad_()
    expected_x = x.detach().clone().requires_grad_()
    with ps.set_eager(True):
        expected = penalties(plain, expected_x, counts)
    check(penalties(model, x, counts), expected)
    check(x.grad, expected_x.grad)
    used = {"first": {0}, "second": {1}, "both": {0, 1}, "rare": {1}}
    for name, ranks in used.items():
        found, reference = getattr(model, name), getattr(plain, name)
        if rank in ranks:
            check(found.weight.grad, reference.weight.grad)
            check(found.bias.grad, reference.bias.grad)
        else:
            assert found.weight.grad is None


def penalties(model, x, counts):
    """A loss of outputs, of all gradients, and of gradients of one of those."""
    loss = model(x, counts)[1:].sin().sum()
    first = torch.autograd.grad(loss, [x, *model.parameters()], create_graph=True)
    penalty = sum(gradient.square().sum() for gradient in first)
    (second,) = torch.autograd.grad(penalty, x, create_graph=True)
    total = loss + penalty + second.square().sum()
    total.backward()
    return [total, *first, second]


def gradients_of_gradients_where_values_steer():
    x, _ = batch(6)
    x.requires_grad_()

    def second(rows):
        (first,) = torch.autograd.grad(torch.stack(rows).cos().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)

    with ps.set_eager(True):
        expected = second([climb(row) for row in x])
    check(second(climb.map(x)), expected)


def several_devices_of_a_rank_agree():
    x, counts = batch(8)
    x.requires_grad_()

    def found(results):
        loss = sum((a.sin() + b.cos()).sum() for a, b in results)
        return [results, torch.autograd.grad(loss, x)]

    with ps.set_eager(True):
        expected = found([three_devices(*instance) for instance in zip(x, counts)])
    for _ in range(2):  # the second follows the plan of the first
        check(found(list(three_devices.map(x, counts))), expected)
        with torch.no_grad():
            check(list(three_devices.map(x, counts)), expected[0])


def several_devices_of_a_rank_run_at_the_same_time(rank):
    """Each launch and each half waits until that of the other device has begun."""
    x = torch.ones(3, requires_grad=True)
    begun = {(what, name): threading.Event() for what in ("step", "half") for name in SIDES}

    def meet(what, block):
        for name, other in zip(SIDES, reversed(SIDES)):
            if name in block.name:
                begun[what, name].set()
                assert begun[what, other].wait(60.0), f"{what} of {name} was alone"

    launch, half = QueuedPlacedTapedRun._launch, Reversal._run_half
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr(
                QueuedPlacedTapedRun,
                "_launch",
                lambda run, step: (meet("step", step.block), launch(run, step))[1],
            )
            patch.setattr(
                Reversal,
                "_run_half",
                lambda own, page, each: (meet("half", page.block), half(own, page, each))[1],
            )
        side_by_side(x).sum().backward()
    check(x.grad, torch.cos(2 * x))
    assert all(event.is_set() for event in begun.values()) == (rank == 1)


def replicas_train_as_one(rank, replica, pipeline, across):
    """Two replicas of a program over two ranks; each rank adds up gradients with its twin."""
    torch.manual_seed(2)
    model = Stages()
    alone = copy.deepcopy(model)
    parallel = DistributedDataParallel(model, process_group=across, find_unused_parameters=True)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, alone)]
    for step in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        with ps.process_group(pipeline):
            parallel(*batch(10 * step + replica)).pow(2).mean().backward()
        with ps.set_eager(True):
            losses = [alone(*batch(10 * step + other)).pow(2).mean() for other in range(2)]
        (sum(losses) / 2).backward()
        for optimizer in optimizers:
            optimizer.step()
    for name in ("first", "both") if rank == 0 else ("second", "both", "rare"):
        check(getattr(model, name).state_dict(), getattr(alone, name).state_dict())


def main():
    number, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(
        "gloo", init_method=os.environ["RENDEZVOUS"], rank=number, world_size=size
    )
    pipelines = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    twins = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    replica, rank = divmod(number, 2)
    with ps.process_group(pipelines[replica]):
        gradients_are_where_parameters_are_used(rank)
        a_plan_that_is_kept_serves_other_data()
        losses_go_backward_one_by_one()
        what_is_not_used_has_no_gradient(rank)
        recursion_over_ranks()
        several_devices_of_a_rank_agree()
        several_devices_of_a_rank_run_at_the_same_time(rank)
        gradients_of_gradients(rank)
        gradients_of_gradients_where_values_steer()
    with ps.process_group(twins[rank]):  # where two of the four have another rank than before
        recursion_over_ranks()
    replicas_train_as_one(rank, replica, pipelines[replica], twins[rank])
    print("agreed", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
