"""What to do where an allocation fails: give memory back, and try again.

What is kept for later calls goes first, as it costs nothing but time. Then whoever wanted memory
lets go of more, as often as there is some. Only work that changes nothing until it is done may be
tried again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from penstock.run.memory.exhaustion import is_out_of_memory
from penstock.run.memory.lasting import give_back_lasting

Made = TypeVar("Made")


def with_room(
    work: Callable[[], Made],
    relieve: Callable[[], int],
    again: Callable[[], Made] | None = None,
) -> Made:
    """Do something that may be done again, where an allocation fails, as long as there is room to
    be made.

    Arguments:
        relieve: lets values leave; the bytes that did.
        again: what to do instead where it is not the first time.
    """
    has_given_back = False
    while True:
        try:
            return work()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            is_given = not has_given_back and give_back_lasting()
            has_given_back = True
            if not is_given and not relieve():
                raise
        work = again or work  # not in the clause above, where the error still holds what was made
