"""What ranks compare before a call and before a backward pass, and what to do where they differ."""

from __future__ import annotations

import zlib
from contextlib import AbstractContextManager
from hashlib import blake2b
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch

from penstock.distributed.failures import OPERATION
from penstock.plan.call_inputs import CallInputs
from penstock.plan.limits import Limits
from penstock.run.engine import Columns
from penstock.run.executable import Executable
from penstock.run.kept_plans import WINDOW

if TYPE_CHECKING:
    from penstock.distributed.run import Placing

_KNOWN: WeakKeyDictionary[Executable, int] = WeakKeyDictionary()

_ADVICE = {
    OPERATION: "Make the same calls, and the same backward passes, in the "
    "same order on every rank.",
    "the program": "Run the same version of the program, with the same torch, on every rank.",
    "the inputs that steer": "Call the function on every rank with the same arguments: the same "
    "batch, in the same order.",
    "the data": "Call the function on every rank with the same arguments: the same batch, in the "
    "same order.",
    "the seed of random operations": "Call `torch.manual_seed` with the same number on every rank, "
    "and draw alike.",
    "the tensors that ask for gradients": "Set `requires_grad` of inputs, and of parameters that "
    "several ranks use, alike on every rank.",
    "the outputs that have gradients": "Compute the loss on every rank in the same way.",
}


def agreed_call(
    run: Placing, columns: Columns, inputs: CallInputs, limits: Limits
) -> AbstractContextManager[None]:
    """Around a call, which is compared with that of every other rank while it begins."""
    executable = run.executable
    seed = run.seed.number if executable.graph.has_random else 0
    facts = {
        OPERATION: run.call,
        "the program": program_digest(executable),
        "the inputs that steer": _number(inputs.digest(limits, WINDOW)),
        "the data": _data_digest(columns),
        "the seed of random operations": seed,
    }
    return run.transport.agreement(facts, _ADVICE)


def agree_on_backward(run: Placing, outputs: bytes, tensors: bytes) -> None:
    """Compare a backward pass with that of every other rank, before anything of it is consumed."""
    facts = {
        # Numbers of calls are positive.
        OPERATION: -run.call,
        "the program": 0,
        "the inputs that steer": 0,
        "the tensors that ask for gradients": _number(tensors),
        "the outputs that have gradients": _number(outputs),
    }
    with run.transport.agreement(facts, _ADVICE):
        run.transport.settle()


def program_digest(executable: Executable) -> int:
    """A number that equal programs share, on whatever rank."""
    if executable not in _KNOWN:
        text = f"{torch.__version__} {executable.graph} {executable.autocast}"
        _KNOWN[executable] = _number(text.encode())
    return _KNOWN[executable]


def _data_digest(columns: Columns) -> int:
    """A checksum of all inputs, so that shuffled rows do not pass."""
    found = 0
    for column in columns:
        for tensor in (column,) if isinstance(column, torch.Tensor) else column:
            held = tensor.detach().cpu().contiguous().reshape(-1)
            found = zlib.crc32(held.view(torch.uint8).numpy().data, found)
    return found


def _number(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little", signed=True)
