"""Texts of the errors that tracing raises, in one place, and how types are written in them."""

from __future__ import annotations

import traceback
from typing import Any

import torch

from penstock.calls.structure import map_leaves
from penstock.capture.leaves import STATIC_TYPES
from penstock.capture.location import user_frame, user_line
from penstock.capture.tensor_array import TensorArray
from penstock.capture.tensor_types import type_of
from penstock.capture.traced_tensor import TracedTensor
from penstock.conversion.compile import refusal_of
from penstock.errors import ArgumentError, MutationError, TracedValueError, report

#: For each way in which Python asks for a value: what it was, and the way out.
_WAYS_OUT = {
    "__bool__": ("bool()", "Use ps.cond instead of `if`, ps.while_loop instead of `while`."),
    "__int__": ("int()", "Keep it a tensor: traced integers work as indices, sizes and operands."),
    "__index__": (
        "a Python index or range()",
        "Use ps.scan, ps.map_fn or ps.while_loop instead of a loop over range(), "
        "and a tensor or ps.TensorArray instead of a list.",
    ),
    "__float__": ("float()", "Keep it a tensor, and use torch functions instead of math."),
    "__complex__": ("complex()", "Keep it a tensor."),
    "__len__": ("len()", "Use x.shape[0], which is a traced integer."),
    "__iter__": ("iteration", "Use ps.scan, ps.map_fn or ps.foldl over the tensor."),
    "__contains__": ("`in`", "Use (x == value).any()."),
    "item": (".item()", "Keep it a tensor: `if`, `while` and ps.cond can decide on it."),
    "tolist": (".tolist()", "Keep it a tensor, and use ps.scan or ps.map_fn over it."),
    "numpy": (".numpy()", "Use torch functions instead of numpy."),
    "__array__": ("numpy", "Use torch functions instead of numpy."),
}

CONVERSIONS = frozenset(_WAYS_OUT)


def value_needed(name: str, tensor: torch.Tensor) -> TracedValueError:
    """A value was asked for in a way that only a tensor with contents can answer."""
    use, way_out = _WAYS_OUT[name]
    if isinstance(tensor, TracedTensor) and not tensor.traced.is_uniform:
        what = f"A traced value has no contents yet: {use} needs them."
    else:
        what = f"{use} would freeze the contents of a captured tensor into the program."
    facts = [("value", describe(tensor)), ("needed", "its contents, while tracing")]
    frame = user_frame()
    reason = None if frame is None else refusal_of(frame.f_code)
    if frame is not None and reason is not None:
        facts.append((f"{frame.f_code.co_name} is not converted", reason))
        way_out = f"Move the function to where it can be converted, or: {way_out}"
    return TracedValueError(report(what, where=user_line(), facts=facts, todo=way_out))


def data_dependent_shape(name: str) -> TracedValueError:
    """A call whose result has a shape that only the contents decide."""
    return TracedValueError(
        report(
            f"{name}: the shape of the result depends on the contents of a tensor.",
            where=user_line(),
            facts=[("call", name), ("needed", "shapes that follow from shapes and sizes")],
            todo="Use a form with a fixed shape (torch.where, a mask), or a ps.TensorArray.",
        )
    )


def mutation(name: str, tensor: torch.Tensor, owner: str) -> MutationError:
    """A tensor that the program does not own was to be changed in place."""
    plain = name.rsplit(".", 1)[-1]
    return MutationError(
        report(
            f"{plain}: a program must not change {owner} in place.",
            where=user_line(),
            facts=[("changed", describe(tensor)), ("allowed", "tensors made in the same body")],
            todo="BatchNorm in training mode keeps statistics of batches, and a program sees one "
            "instance: normalise what it returns, take LayerNorm, or call eval()."
            if _is_in_batch_norm()
            else "Use the form without an underscore (x = x + y, x.add(y), torch.where), "
            "or clone the tensor first.",
        )
    )


def _is_in_batch_norm() -> bool:
    """Whether the call at work is torch's own, for running statistics."""
    files = (frame.f_code.co_filename for frame, _ in traceback.walk_stack(None))
    return any(file.endswith("torch/nn/modules/batchnorm.py") for file in files)


def out_of_reach(tensor: Any, is_other_function: bool) -> TracedValueError:
    """A traced value was read where its body is not visible."""
    if is_other_function:
        what = "A ps.function reads a traced value of the function that calls it."
        todo = "Pass the value as an argument."
    else:
        what = "A value made inside a branch or loop body is used outside it."
        todo = "Return the value from the branch or body."
    facts = [("value", describe(tensor)), ("visible", "arguments, results and enclosing values")]
    return TracedValueError(report(what, where=user_line(), facts=facts, todo=todo))


class _Text(str):
    """A string that shows itself without quotes inside a container's repr."""

    __slots__ = ()
    __repr__ = str.__str__


def describe(value: Any) -> str:
    """The type of a nested value as a person writes it, traced or not."""
    return repr(map_leaves(_described_leaf, value))


def _described_leaf(leaf: Any) -> _Text:
    if isinstance(leaf, TracedTensor):
        return _Text(str(leaf.traced.value.type))
    if isinstance(leaf, TensorArray):
        return _Text("TensorArray")
    if isinstance(leaf, torch.Tensor):
        with torch._C.DisableTorchFunction():
            return _Text(str(type_of(leaf)))
    return _Text(repr(leaf) if isinstance(leaf, STATIC_TYPES) else type(leaf).__name__)


def refuse_frequencies(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Embeddings whose gradients depend on how many indices run together cannot be batched."""
    if name != "torch.nn.functional.embedding":
        return
    if kwargs.get("scale_grad_by_freq", len(args) > 5 and args[5]):
        raise ArgumentError(
            report(
                "embedding: scale_grad_by_freq counts indices call by call.",
                where=user_line(),
                facts=[("given", "scale_grad_by_freq=True"), ("in a program", "calls are batched")],
                todo="Make the embedding without scale_grad_by_freq.",
            )
        )
