"""Puts another state in the place of what torch keeps per thread.

Only what differs is written, and in an order that matters: modes change dispatch keys, so those
come last. What torch sets only for the length of a guard is set by guards that never end by
themselves.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils import _device, _python_dispatch

from penstock.capture import active, eager_keys
from penstock.capture.lazy import active as recording
from penstock.capture.lazy.thread_state import (
    AUTOCAST_KINDS,
    DISPATCH_FLAGS,
    Companions,
    SavedState,
    ThreadState,
    write_hooks,
)

_C: Any = torch._C
_nest, _unnest = _C.autocast_increment_nesting, _C.autocast_decrement_nesting

#: How torch sets the flags of autograd beside inference mode; releases differ in the last.
_AUTOGRAD = [
    getattr(_C, name)
    for name in (
        "_set_grad_enabled",
        "_set_fwd_grad_enabled",
        "_set_multithreading_enabled",
        "_set_view_replay_enabled",
        "_set_grad_layout_enforcement_enabled",
    )
    if hasattr(_C, name)
]


def write_state(present: ThreadState, target: SavedState) -> None:
    """Put `target` in the place of the state `present`, which is what `read_state` gives here."""
    state, companions = target
    if state.function_modes != present.function_modes:
        _write_function_modes(present.function_modes, state.function_modes)
        torch._GLOBAL_DEVICE_CONTEXT.device_context = companions.default_device
        _device.CURRENT_DEVICE = companions.device
        eager_keys._state.scope = companions.random_scope
    if state.bypassed != present.bypassed:
        _BYPASSES[state.bypassed].__exit__(None, None, None)
    if state.autocast != present.autocast:
        _write_autocast(present.autocast, state.autocast, companions)
    if state.hooks != present.hooks:
        write_hooks(present.hooks, state.hooks)
    if state.streams != present.streams and state.streams is not None:
        _write_streams(state.streams)
    if state.own != present.own:
        (
            recording.state.scope,
            active.state.eager,
            active.state.device,
            *active.state.tracers[:],
        ) = state.own
    if state.dispatch_modes != present.dispatch_modes:
        _write_dispatch_modes(present.dispatch_modes, state.dispatch_modes)
        _write_dispatch_flags(companions.dispatch_flags)
    if state.autograd != present.autograd:
        _write_autograd(present.autograd, state.autograd)
    changed = (state.keys, state.dispatch_modes, state.autograd[0])
    if changed != (present.keys, present.dispatch_modes, present.autograd[0]):
        _guards.set_keys(state.keys)  # Last: dispatch modes and inference mode change keys, too.


def _write_autograd(present: tuple[bool, ...], autograd: tuple[bool, ...]) -> None:
    if autograd[0] != present[0]:
        _guards.set_inference(autograd[0])
    for write, flag in zip(_AUTOGRAD, autograd[1:]):
        write(flag)


def _write_dispatch_modes(present: tuple[Any, ...], modes: tuple[Any, ...]) -> None:
    for _ in present:
        _C._pop_torch_dispatch_stack(None)
    for mode in modes:
        _C._push_on_torch_dispatch_stack(mode)


def _write_dispatch_flags(flags: tuple[bool, ...]) -> None:
    for name, flag in zip(DISPATCH_FLAGS, flags, strict=True):
        setattr(_python_dispatch, name, flag)
    tell = getattr(_python_dispatch, "set_is_in_mode_without_ignore_compile_internals", None)
    if tell is not None:
        tell(flags[-1])


def _write_function_modes(present: tuple[Any, ...], modes: tuple[Any, ...]) -> None:
    common = 0
    while common < min(len(present), len(modes)) and present[common] is modes[common]:
        common += 1
    for _ in present[common:]:
        _C._pop_torch_function_stack()
    for mode in modes[common:]:
        _C._push_on_torch_function_stack(mode)


def _write_autocast(present: int, nesting: int, companions: Companions) -> None:
    """Casts that were cached may have another dtype, so they go."""
    for _ in range(nesting, present, 2):
        _unnest()
    for _ in range(present, nesting, 2):
        _nest()
    torch.set_autocast_cache_enabled(companions.caches_casts)
    for kind, dtype in zip(AUTOCAST_KINDS, companions.dtypes, strict=True):
        torch.set_autocast_dtype(kind, dtype)
    torch.clear_autocast_cache()


def _write_streams(streams: tuple[Any, ...]) -> None:
    device, *currents = streams
    for number, device_index, kind in currents:
        _C._cuda_setStream(stream_id=number, device_index=device_index, device_type=kind)
    _C._cuda_setDevice(device)


class _Guards(threading.local):
    """Sets what torch can set only for the length of a guard.

    A guard sets its value whatever held before. What it puts back at its end does not count: it
    ends right before the next one begins, or with its thread.
    """

    def __init__(self) -> None:
        self._inference: Any = None
        self._keys: Any = None

    def set_inference(self, flag: bool) -> None:
        """Also sets other flags of autograd, and keys: set those afterwards."""
        if self._inference is not None:
            self._inference.__exit__(None, None, None)
        self._inference = _C._InferenceMode(flag)
        self._inference.__enter__()

    def set_keys(self, keys: tuple[int, int]) -> None:
        """Include and exclude exactly these dispatch keys."""
        if self._keys is not None:
            self._keys.__exit__(None, None, None)
        sets = [_C.DispatchKeySet.from_raw_repr(number) for number in keys]
        self._keys = _C._ForceDispatchKeyGuard(*sets)
        self._keys.__enter__()


_guards = _Guards()


def _remember_bypasses() -> list[Any]:
    """Three guards whose exit makes none, those of subclasses, or all calls pass by."""
    found = []
    levels: tuple[AbstractContextManager[Any], ...] = (
        nullcontext(),
        _C.DisableTorchFunctionSubclass(),
        _C.DisableTorchFunction(),
    )
    with _C._EnableTorchFunction():
        for level in levels:
            with level:
                found.append(_C.DisableTorchFunctionSubclass())
                found[-1].__enter__()
    return found


_BYPASSES = _remember_bypasses()
