"""In-place operations and views of recorded values, and of real tensors."""

from __future__ import annotations

import torch
from torch import nn

from tests.existing_code.harness import Table

TABLE = Table()


def changed(name):
    """Enter a function that changes its argument, a fresh recorded 3 x 4 matrix, in place."""

    def enter(change):
        def build(make):
            w = make.tensor(4)

            def run(x):
                y = x * w
                returned = change(y, x)
                return y, returned

            return run, make.tensors(3, 3, 4)

        build.__name__ = f"in place: {name}"
        return TABLE.program(build)

    return enter


@changed("plus equals")
def _(y, x):
    y += x


@changed("all the augmented assignments")
def _(y, x):
    y -= 1
    y *= x
    y /= 2
    y **= 2


@changed("an element set")
def _(y, x):
    y[1] = x[0]


@changed("a number set")
def _(y, x):
    y[0, 1] = 3.0
    y[-1] = 0


@changed("a slice set")
def _(y, x):
    y[1:] = x[:2] * 2


@changed("a slice incremented")
def _(y, x):
    y[0:2] += x[1:] * 2


@changed("a column set")
def _(y, x):
    y[:, 1] = x[:, 0]


@changed("a column multiplied")
def _(y, x):
    y[:, 2] *= x[:, 3]


@changed("a mask set")
def _(y, x):
    y[y > 0] = 0.5


@changed("a mask set to values")
def _(y, x):
    y[x > 0] = x[x > 0] * 2


@changed("rows by a list")
def _(y, x):
    y[[0, 2]] = x[:2]


@changed("an element by a computed index")
def _(y, x):
    y[x[:, 0].argmax()] = 1.0
    y[0, x[0].argmin().item()] = 2.0


@changed("a view incremented")
def _(y, x):
    z = y[0]
    z += 1
    return z


@changed("the whole after its view")
def _(y, x):
    z = y[0]
    y *= 2
    return z * 1


@changed("a view of a view")
def _(y, x):
    z = y[1:]
    z[0][2] = 5.0
    return z.sum()


@changed("a flattened view")
def _(y, x):
    y.view(-1)[2] = 1.0


@changed("a transposed view")
def _(y, x):
    y.t()[0] += 1
    y.T[1].mul_(x[:, 0])


@changed("two views that overlap")
def _(y, x):
    a, b = y[:2], y[1:]
    a += 1
    b *= 2
    return a + b


@changed("chunks")
def _(y, x):
    with torch.no_grad():
        z = y.detach().clone()
        a, b = z.chunk(2, dim=1)
        a.mul_(3)
        b += a
    return z


@changed("rows of an iteration")
def _(y, x):
    with torch.no_grad():
        z = y.detach().clone()
        for i, row in enumerate(z):
            row += i
    return z


@changed("an unsqueezed view")
def _(y, x):
    y.unsqueeze(0)[0, 1] = 7.0
    y.squeeze().add_(1)


@changed("a permuted and expanded view")
def _(y, x):
    z = y.permute(1, 0)
    z[0] = x[:, 0]
    return y[:1].expand(2, 4) * 1


@changed("fill and zero")
def _(y, x):
    y[0].fill_(2.0)
    y[1].zero_()


@changed("copy")
def _(y, x):
    y.copy_(x + 1)


@changed("copy into a part")
def _(y, x):
    y[1].copy_(x[0])


@changed("methods with an underscore")
def _(y, x):
    y.add_(x, alpha=2).sub_(1).mul_(2).div_(3).neg_()


@changed("functions with an underscore")
def _(y, x):
    y.tanh_()
    return torch.relu_(y - 1) + torch.exp_(x * 2) + (x - 1).clamp_(-0.9, 0.9)


@changed("masked fill")
def _(y, x):
    y.masked_fill_(x > 0, -1.0)


@changed("scatter")
def _(y, x):
    y.scatter_(1, torch.tensor([[0], [1], [2]]), 9.0)
    y.scatter_add_(1, torch.tensor([[1], [1], [1]]), x[:, :1])


@changed("index add and index fill")
def _(y, x):
    y.index_add_(0, torch.tensor([0, 0]), x[:2])
    y.index_fill_(1, torch.tensor([3]), 0.0)


@changed("relu in place")
def _(y, x):
    return nn.functional.relu(y, inplace=True)


@changed("a result read in between")
def _(y, x):
    y += 1
    before = y[0, 0].item()
    y *= 2
    return before, y[0, 0].item()


@changed("an alias by detach")
def _(y, x):
    z = y.detach()
    with torch.no_grad():
        z.mul_(2)
    return z


@changed("a clone apart")
def _(y, x):
    z = y.clone()
    z += 1
    return z


@changed("addcmul and lerp")
def _(y, x):
    y.addcmul_(x, x, value=0.5)
    y.lerp_(x, 0.25)


@changed("a swap of rows")
def _(y, x):
    y[0], y[1] = y[1].clone(), y[0].clone()


@changed("an out argument")
def _(y, x):
    with torch.no_grad():
        result = torch.empty(3, 4)
        torch.add(y.detach(), x.detach(), out=result)
    return result


@changed("a transposition in place")
def _(y, x):
    z = y.clone()
    z.t_()
    z.unsqueeze_(0)
    return z


@changed("set by a view of itself")
def _(y, x):
    y[0] = y[1] * 2
    y[1:] = y[:-1].clone()


@TABLE.program
def a_fresh_tensor_filled_step_by_step(make):
    w = make.tensor(3)

    def run(xs):
        out = torch.zeros(len(xs), 3)
        for i, x in enumerate(xs):
            out[i] = x * w + (out[i - 1] if i else 0)
        return out

    return run, make.sentences((2, 4, 3), 3)


@TABLE.program
def an_accumulator(make):
    w = make.tensor(3)

    def run(xs):
        total = torch.zeros(3)
        for x in xs:
            total += torch.tanh(x * w)
        return total

    return run, make.sentences((2, 4, 3), 3)


@TABLE.program
def rows_of_a_new_tensor_filled_by_halves(make):
    def run(x):
        out = x.new(2, 4).fill_(0.0)
        out[0, :2] = x[:2]
        out[1, 2:] = x[2:] * 2
        out.view(-1)[3] = x.sum()
        return out

    return run, make.tensors(3, 4)


@TABLE.program
def a_buffer_of_the_module_updated(make):
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.register_buffer("mean", torch.zeros(2))
            self.register_buffer("count", torch.zeros((), dtype=torch.long))

        def forward(self, x):
            y = self.layer(x)
            with torch.no_grad():
                self.count += 1
                self.mean.mul_(0.9).add_(y.detach(), alpha=0.1)
            return y + self.mean

    counter = make.module(Counter())
    make.watch(lambda: [counter.mean, counter.count])
    return counter, make.tensors(4, 2)


@TABLE.program
def an_outside_tensor_that_instances_write_to(make):
    board = torch.zeros(3, 2)
    w = make.tensor(2)
    make.watch(lambda: board.clone())

    def run(i, x):
        board[i] = (x * w).detach()
        return x * board.sum()

    return run, [0, 1, 2], make.tensors(3, 2)


@TABLE.program
def a_real_tensor_changed_after_it_was_used(make):
    w = make.tensor(2)

    def run(x):
        scratch = torch.ones(2)
        a = x + scratch
        scratch.fill_(3.0)
        b = w - scratch
        scratch += 1
        return a, b, scratch * x

    return run, make.tensors(3, 2)


@TABLE.program
def an_outside_tensor_changed_between_instances(make):
    scratch = torch.ones(2)

    def run(x):
        y = x + scratch
        scratch.mul_(2)
        return y

    return run, make.tensors(3, 2)


@TABLE.program
def an_argument_changed_in_place(make):
    rows = make.tensors(3, 2, grad=False)
    w = make.tensor(2)
    make.watch(lambda: [row.clone() for row in rows])

    def run(x):
        before = x + w
        x += 1
        x[0] = 5.0
        return before, x * w

    return run, rows


@TABLE.program
def a_recorded_value_written_into_an_argument(make):
    rows = make.tensors(3, 2, grad=False)
    make.watch(lambda: [row.clone() for row in rows])

    def run(x):
        x[1] = (x * 2).sum()
        return x.sin()

    return run, rows


@TABLE.program
def a_detached_value_changed(make):
    w = make.tensor(2)

    def run(x):
        y = x + w
        z = y.detach()
        z += 1
        z[0] = 0.0
        return y * 2, z * w

    return run, make.tensors(3, 2)
