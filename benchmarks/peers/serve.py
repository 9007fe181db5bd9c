"""The side of a peer: reads commands from standard input, answers in lines of JSON.

A worker is started with a folder that holds problem.npz and the number of threads. It answers once
when it is ready, which is after a first call, then to each command: `result` leaves result.npz in
the folder, `time N` calls N times and says how many seconds a call took.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

#: From the arrays of a problem to a call of the timed work, and to one that returns the results.
Prepare = Callable[[dict[str, Any]], tuple[Callable[[], None], Callable[[], Sequence[Any]]]]


_processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def limit_threads(count: int) -> None:
    """Before a system is imported: most start as many as there are processors to be seen."""
    os.environ |= {name: str(count) for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")}
    if _processors:
        os.sched_setaffinity(0, sorted(_processors)[:count])


def _free_processors() -> None:
    """Once threads have been started they may run anywhere, like those of the other candidates."""
    for thread in Path("/proc/self/task").iterdir() if _processors else []:
        os.sched_setaffinity(int(thread.name), _processors)


def serve(prepare: Prepare, version: str) -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a system prints is no answer
    folder = Path(sys.argv[1])
    with np.load(folder / "problem.npz") as problem:
        work, results = prepare(dict(problem))
    work()
    _free_processors()
    _answer(answers, {"ready": version})
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "result":
            arrays = {str(number): value for number, value in enumerate(results())}
            np.savez(folder / "result.npz", **arrays)
            _answer(answers, {"results": len(arrays)})
        else:
            repeats = int(arguments[0])
            begin = perf_counter()
            for _ in range(repeats):
                work()
            _answer(answers, {"seconds": (perf_counter() - begin) / repeats})


def _answer(stream: Any, content: dict[str, Any]) -> None:
    stream.write(json.dumps(content) + "\n")
    stream.flush()
