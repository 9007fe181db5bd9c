"""What code asks of a tensor: sizes, types, numbers, text, copies, and conversions."""

from __future__ import annotations

import copy

import torch
from torch import nn

from tests.existing_code.harness import Table

TABLE = Table()


def asserted(condition):
    """Fail where the answer is not what any tensor of that kind gives."""
    assert condition
    return 1.0


TABLE.one_liners(
    "question:",
    {
        "size": lambda x: (x * 2).size() + torch.Size([int(x.sum() > 0)]),
        "size of one": lambda x: (x * 2).size(0) * x.size(-1) + x,
        "shape": lambda x: torch.zeros(x.exp().shape) + x,
        "shape unpacked": lambda x: (lambda n, d: x.sin().view(d, n))(*x.sin().shape),
        "dim": lambda x: (x @ x.t()).dim() + x.ndim * x,
        "numel": lambda x: x.tanh().numel() / x,
        "len": lambda x: len(x + 1) * x,
        "nelement": lambda x: x.exp().nelement() * x.ndimension(),
        "device": lambda x: x * asserted((x + 1).device == torch.device("cpu")),
        "device type": lambda x: x * asserted((x + 1).device.type == "cpu" and not x.is_cuda),
        "zeros on its device": lambda x: torch.zeros(3, 4, device=(x + 1).device) + x,
        "dtype": lambda x: torch.ones(4, dtype=(x + 1).dtype) * x,
        "dtype of a comparison": lambda x: x * asserted((x > 0).dtype is torch.bool),
        "is floating": lambda x: x * asserted((x + 1).is_floating_point()),
        "isinstance": lambda x: x * asserted(isinstance(x + 1, torch.Tensor)),
        "is tensor": lambda x: x * asserted(torch.is_tensor(x + 1)),
        "not a parameter": lambda x: x * asserted(not isinstance(x + 1, nn.Parameter)),
        "requires grad": lambda x: x * asserted((x + 1).requires_grad),
        "leaf or not": lambda x: x * asserted(not (x + 1).is_leaf),
        "detached": lambda x: x * asserted(not (x + 1).detach().requires_grad),
        "contiguous or not": lambda x: x * asserted(not (x + 1).t().is_contiguous()),
        "element size": lambda x: (x + 1).element_size() * x,
    },
    3,
    4,
)

TABLE.one_liners(
    "number:",
    {
        "item": lambda x: x.sum().item(),
        "item used": lambda x: x * (x * 2).sum().item(),
        "float": lambda x: float(x[0, 0] * 2) * x,
        "int": lambda x: int(x.sum() * 10) * x,
        "bool": lambda x: x if bool(x.sum() > 0) else -2 * x,
        "if": lambda x: x.sin() if x.mean() > 0 else x.cos(),
        "not": lambda x: x.sin() if not (x.mean() > 0) else x.cos(),
        "and": lambda x: x.sin() if x[0, 0] > 0 and x[0, 1] < 1 else x.cos(),
        "while": lambda x: shrink(x),
        "tolist": lambda x: (x * 2).tolist(),
        "tolist of a list": lambda x: [row.tolist() for row in x.sort(1).indices],
        "numpy": lambda x: torch.from_numpy((x * 2).detach().numpy()) + x,
        "cpu numpy": lambda x: float((x + 1).detach().cpu().numpy().sum()) + x,
        "equal": lambda x: x * 2 if torch.equal(x + 1, x + 1) else x,
        "allclose": lambda x: x * 2 if torch.allclose(x.exp(), x.exp() + 1) else x * 3,
        "chained comparison": lambda x: x if -1 < x.mean() < 1 else 2 * x,
        "python max of tensors": lambda x: max(x[0]) * x,
        "sorted": lambda x: torch.stack(sorted(x[0], key=float)),
        "range of computed": lambda x: sum(x[0] for _ in range((x > 0).sum() + 1)),
        "rounded": lambda x: round(float(x[0, 0]), 2) + x,
        "any over python": lambda x: x if any(v > 0 for v in x[0]) else -x,
    },
    3,
    4,
)

TABLE.one_liners(
    "text:",
    {
        "repr": lambda x: repr((x * 2).detach()[0]),
        "format": lambda x: f"{(x * 2).sum().item():.3f} and {x.sum().detach():.4f}",
        "str": lambda x: str(x[0] > 0),
        "print": lambda x: printed(x * 2),
    },
    3,
    4,
)

TABLE.one_liners(
    "made:",
    {
        "new": lambda x: (x + 1).detach().new(1, 3).fill_(0.0) + x[:1, :3],
        "new zeros": lambda x: (x + 1).new_zeros(3, 4) + x,
        "new ones": lambda x: x.new_ones(2) * x[0, 0],
        "new full": lambda x: x.exp().new_full((3,), 2.0) * x[0, 0],
        "new tensor": lambda x: (x + 1).new_tensor([1.0, 2.0]) * x[0, 0],
        "zeros like": lambda x: torch.zeros_like(x + 1) + x,
        "ones like": lambda x: torch.ones_like(x > 0) * x,
        "full like": lambda x: torch.full_like(x * 2, 3.0) * x,
        "empty and fill": lambda x: torch.empty(3, 4).fill_(2) * x,
        "zeros that require grad": lambda x: torch.zeros(3, 4).requires_grad_() + x,
        "zeros with requires grad": lambda x: torch.zeros(3, 4, requires_grad=True) * 2 + x,
        "tensor of a recorded": lambda x: torch.tensor([x.sum().detach(), 1.0]) + x[0, :2],
        "tensor of a number": lambda x: torch.tensor([float(x.sum())]) * x,
        "as tensor": lambda x: torch.as_tensor(x * 2) + torch.as_tensor([1.0, 2.0, 3.0, 4.0]),
        "arange of a size": lambda x: torch.arange(x.exp().size(1)) * x,
        "eye": lambda x: torch.eye(3) @ x,
        "linspace": lambda x: torch.linspace(0, 1, 4) * x,
        "to a dtype": lambda x: (x * 2).to(torch.float32).to(torch.float64),
        "to like another": lambda x: (x > 0).to(x) + x,
        "type as": lambda x: (x > 0).type_as(x) * x,
        "float and double": lambda x: (x * 2).float().double(),
        "long": lambda x: (x * 10).long() * x,
        "to cpu": lambda x: (x * 2).to("cpu").cpu() + x.to(x.device),
        "detach": lambda x: (x * 2).detach() * x,
        "data": lambda x: (x * 2).data * x,
        "clone": lambda x: (x * 2).clone() + x.clone(),
        "copied": lambda x: copy.copy(x * 2) + x,
        "deep copied": lambda x: copy.deepcopy((x * 2).detach()) + x,
        "contiguous": lambda x: (x * 2).contiguous() + x,
    },
    3,
    4,
)


def shrink(x):
    """Halve until small."""
    count = 0
    while x.abs().max() > 0.3:
        x = x / 2
        count += 1
    return x, count


def printed(x):
    """Print it, and the plain number."""
    print(x)
    print(f"{x.shape} {x.detach().mean():.2f}")
    return x


@TABLE.program
def a_list_that_contains_a_recorded_tensor(make):
    def remember(x):
        y = x * 2
        seen = [x, y]
        return y + len(seen) * (any(entry is y for entry in seen)) + (y in seen[1:])

    return remember, make.tensors(3, 2)


@TABLE.program
def a_tensor_column(make):
    w = make.tensor(2)
    return lambda x, k: x * w + k, make.tensor(4, 2), [1, 2, 3, 4]


@TABLE.program
def python_numbers_and_strings_as_columns(make):
    w = make.tensor(2)

    def apply(name, power, flag, extra):
        y = getattr(torch, name)(w) ** power
        return y if flag and extra is None else y + extra["b"]

    rows = [None, {"b": make.tensor(2)}, {"b": make.tensor(2)}]
    return apply, ["sin", "cos", "sin"], [2, 3, 2], [True, False, True], rows
