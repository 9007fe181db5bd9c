"""`ps.profile`: what ran, how wide, how long, and why not wider."""

from __future__ import annotations

from contextlib import AbstractContextManager

from penstock.profiling.profile import Profile
from penstock.run.recording import profiling


def profile(*, check_nan: bool = False) -> AbstractContextManager[Profile]:
    """Record the calls made inside a `with` block; results are the same as without it.

    The profile has `launches` (records with `block`, `rows`, `shapes`, `device`, `seconds`) in
    order of execution, `summary()`, a table for the terminal, `explain()`, which says what limited
    batching, `export_chrome_trace(path)` for Perfetto, and `save_html(path)`, one page with
    pictures. Profiles may be nested; each records what runs inside it. Backward passes of calls
    made inside are recorded as well, as launches of `block.backward`. No launch waits for its
    device; plans are not replayed as CUDA graphs meanwhile.

    Arguments:
        check_nan: look at every launch, forward and backward; the first NaN is a `NanError` that
            names the instance, the block and the source line.

    Example:
        >>> import torch
        >>> import penstock as ps
        >>> @ps.function
        ... def decay(x, steps):
        ...     step = lambda k, x: (k + 1, x.sin())
        ...     return ps.while_loop(lambda k, x: k < steps, step, (0, x))[1]
        >>> with ps.profile() as run:
        ...     results = decay.map(torch.ones(3, 20), [1, 2, 3])
        >>> [launch.rows for launch in run.launches]
        [3, 2, 1]

    Gradients flow as they do without a profile.
    """
    return profiling(check_nan=check_nan)
