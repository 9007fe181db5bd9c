"""What torch keeps per thread, as a value; `thread_state_writes` puts another in its place.

Fibers share a thread, so each needs its own: grad and inference mode, autocast, function and
dispatch modes (the default device is one), saved-tensor hooks, the current CUDA device and streams,
and what this package keeps per thread. All private API of torch that this takes is used here and in
`thread_state_writes` alone. What torch keeps per process is left as it is: default dtype,
deterministic algorithms, anomaly mode, random generators.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch._C import _autograd
from torch.utils import _device, _python_dispatch

from penstock.capture import active, eager_keys
from penstock.capture.lazy import active as recording


class ThreadState(NamedTuple):
    """What is looked at in every switch; equal where nothing differs. Modes are outermost first."""

    #: Inference mode, then the flags of `thread_state_writes`, in their order.
    autograd: tuple[bool, ...]
    #: Dispatch keys included and excluded; whether autocast is on is among the latter.
    keys: tuple[int, int]
    #: Twice the number of autocast regions entered, and one.
    autocast: int
    #: Which calls pass `__torch_function__` by: none, those of subclasses, all.
    bypassed: int
    function_modes: tuple[Any, ...]
    dispatch_modes: tuple[Any, ...]
    #: Saved-tensor hooks, outermost first, and why they are disabled.
    hooks: tuple[tuple[Any, ...], str | None]
    #: The current CUDA device and the current stream of each device; None while CUDA is unused.
    streams: tuple[Any, ...] | None
    #: The recording scope, whether plain Python is asked for, the tracers.
    own: tuple[Any, ...]


class Companions(NamedTuple):
    """What changes only with a field of `ThreadState`, and is put back with it.

    Some of it torch keeps per process: a thread that enters no modes leaves that alone.
    """

    #: With autocast: whether casts are cached, and the dtype of each kind of device.
    caches_casts: bool
    dtypes: tuple[torch.dtype, ...]
    #: With function modes: the default device, the device entered last, the scope of random draws.
    default_device: Any
    device: torch.device | None
    random_scope: Any
    #: With dispatch modes: whether some are entered, as `DISPATCH_FLAGS` names them.
    dispatch_flags: tuple[bool, ...]


class SavedState(NamedTuple):
    """All that a fiber needs to go on."""

    state: ThreadState
    companions: Companions


_C: Any = torch._C
_included, _excluded = _C._dispatch_tls_local_include_set, _C._dispatch_tls_local_exclude_set
_nest, _unnest = _C.autocast_increment_nesting, _C.autocast_decrement_nesting
_is_function_enabled = _C._is_torch_function_enabled
_is_function_disabled = _C._is_torch_function_all_disabled
_function_depth, _function_mode = _C._len_torch_function_stack, _C._get_function_stack_at
_dispatch_depth, _dispatch_mode = _C._len_torch_dispatch_stack, _C._get_dispatch_stack_at
_top_hooks = _autograd._top_saved_tensors_default_hooks
_disabled_hooks = _autograd._saved_tensors_hooks_get_disabled_error_message

_is_inference, _is_grad = _C.is_inference_mode_enabled, _C.is_grad_enabled
_is_forward_grad, _is_threaded = _C._is_fwd_grad_enabled, _C._is_multithreading_enabled
_is_replaying = _C._is_view_replay_enabled
_is_laid_out = getattr(_C, "_is_grad_layout_enforcement_enabled", bool)

_accelerator = torch.accelerator.current_accelerator()
#: The kinds of devices whose autocast dtype may differ.
AUTOCAST_KINDS = tuple(
    dict.fromkeys(["cpu", "cuda", *([_accelerator.type] if _accelerator else [])])
)

_PYTHON_KEY = _C.DispatchKeySet(_C.DispatchKey.Python).raw_repr()
_SNAPSHOT_KEY = _C.DispatchKeySet(_C.DispatchKey.PythonTLSSnapshot).raw_repr()

#: Flags that torch keeps per process while dispatch modes are entered.
DISPATCH_FLAGS = [
    name
    for name in (
        "_is_in_torch_dispatch_mode",
        "_is_in_non_infra_torch_dispatch_mode",
        "_is_in_any_mode_without_ignore_compile_internals",
    )
    if hasattr(_python_dispatch, name)
]


def read_state() -> ThreadState:
    """The state of this thread as it is now."""
    return ThreadState._make(read_fields())


def read_fields() -> tuple[Any, ...]:
    """The fields of `ThreadState`: a plain tuple, for it is made at every wait."""
    depth = _function_depth()
    return (
        (
            _is_inference(),
            _is_grad(),
            _is_forward_grad(),
            _is_threaded(),
            _is_replaying(),
            _is_laid_out(),
        ),
        (_included().raw_repr(), _excluded().raw_repr()),
        _nest() + _unnest(),
        0 if _is_function_enabled() else 2 if _is_function_disabled() else 1,
        tuple([_function_mode(place) for place in range(depth)]) if depth else (),
        _read_dispatch_modes() if _dispatch_depth() else (),
        (() if _top_hooks(True) is None else _read_hooks(), _disabled_hooks()),
        _read_streams() if torch.cuda._initialized else None,
        (recording.state.scope, active.state.eager, active.state.device, *active.state.tracers),
    )


def is_dispatching(state: ThreadState) -> bool:
    """Whether a `__torch_dispatch__` handler runs: torch keeps, unseen, the keys it began with."""
    return bool(state.keys[1] & _SNAPSHOT_KEY) and not state.keys[1] & _PYTHON_KEY


def has_same_modes(state: ThreadState, other: ThreadState) -> bool:
    """Whether the companions of two states are the same."""
    return (state.autocast, state.function_modes, state.dispatch_modes) == (
        other.autocast,
        other.function_modes,
        other.dispatch_modes,
    )


def read_companions() -> Companions:
    """What goes with the state, as it is now."""
    return Companions(
        torch.is_autocast_cache_enabled(),
        tuple([torch.get_autocast_dtype(kind) for kind in AUTOCAST_KINDS]),
        getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None),
        _device.CURRENT_DEVICE,
        eager_keys._state.scope,
        tuple([getattr(_python_dispatch, name) for name in DISPATCH_FLAGS]),
    )


def _read_dispatch_modes() -> tuple[Any, ...]:
    return tuple([_dispatch_mode(place) for place in range(_dispatch_depth())])


def _read_hooks() -> tuple[Any, ...]:
    """All pairs of hooks: torch shows the innermost alone, so they are taken off and put back."""
    pairs: list[Any] = []
    while (pair := _top_hooks(True)) is not None:
        pairs.append(tuple(pair))
        _autograd._pop_saved_tensors_default_hooks()
    message = _disabled_hooks()
    write_hooks(((), message), (tuple(reversed(pairs)), message))
    return tuple(reversed(pairs))


@cache
def _device_count() -> int:
    return torch.cuda.device_count()


def _read_streams() -> tuple[Any, ...]:
    return (_C._cuda_getDevice(), *map(_C._cuda_getCurrentStream, range(_device_count())))


def write_hooks(present: tuple[Any, ...], hooks: tuple[Any, ...]) -> None:
    """Hooks are put on while they are enabled, and disabled, if they are to be, afterwards."""
    pairs, message = hooks
    _autograd._saved_tensors_hooks_enable()
    for _ in present[0]:
        _autograd._pop_saved_tensors_default_hooks()
    for pack, unpack in pairs:
        _autograd._push_saved_tensors_default_hooks(pack, unpack)
    if message is not None:
        _autograd._saved_tensors_hooks_disable(message, False)
