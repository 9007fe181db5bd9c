"""Threads that look for the reason of a failure, and what becomes of them."""

import subprocess
import sys
import time

from penstock.distributed.abort import _within

SCRIPT = """
import time
from penstock.distributed.abort import _within

def answer():
    time.sleep(0.3)
    print("answered", flush=True)

assert _within(0.01, answer) is None
"""


def test_an_answer_is_waited_for_as_long_as_was_said():
    assert _within(5.0, lambda: "yes") == "yes"
    assert _within(0.01, lambda: time.sleep(0.5)) is None


def test_a_process_does_not_end_while_a_thread_asks_a_store():
    """Back from C++ in an interpreter that is gone, it would end the process with an abort."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True
    )
    assert done.stdout == "answered\n"
