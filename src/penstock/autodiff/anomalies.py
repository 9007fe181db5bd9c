"""From a NaN in a backward launch to the user's line: its row is computed again, one call after
the other.
"""

from __future__ import annotations

import numpy as np

from penstock.autodiff.ends import Ends
from penstock.autodiff.nans import NanFound
from penstock.autodiff.replay import Replay
from penstock.errors import NanError, RepetitionError
from penstock.plan.schedule import slots_of
from penstock.run.nans import backward_line, nan_error, one_row


def place_of(found: NanFound, ends: Ends) -> NanError:
    """The error that names the instance and the line of the NaN."""
    page, rows = found.page, np.array([found.row])
    wanted = [
        (target.arena, slots_of(target).reshape(page.rows, -1)[found.row], None)
        for target in page.launch.targets
    ]
    number = list(ends.entries).index(page)
    replay = Replay(ends, wanted, number + 1)
    try:
        replay.carry_out(number)
    except RepetitionError:
        source = None
    else:
        single = one_row(page.block, replay.arguments(page, rows), 0)
        cotangents = [found.cotangents.get(k) for k in range(len(page.launch.targets))]
        source = backward_line(page.block, single, cotangents)
    return nan_error(page.block, ".backward", source, page.instances, found.row, ends.run.numbers)
