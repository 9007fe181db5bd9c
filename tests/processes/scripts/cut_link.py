"""One rank of two that talk over a link of their own, which is cut between two calls."""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import penstock as ps

RANK, FOLDER = int(os.environ["RANK"]), Path(os.environ["FOLDER"])


@ps.function
def there_and_back(x, n):
    def body(k, y):
        with ps.device("rank:1"):
            y = torch.tanh(y)
        with ps.device("rank:0"):
            return k + 1, y * 1.1

    return ps.while_loop(lambda k, y: k < n, body, (0, x))[1]


def main():
    dist.init_process_group(
        "gloo",
        init_method=os.environ["RENDEZVOUS"],
        rank=RANK,
        world_size=2,
        timeout=timedelta(seconds=60),
    )
    # A group of its own, so that starting may take longer than a message.
    group = dist.new_group([0, 1], timeout=timedelta(seconds=4))
    x = torch.ones(2, 3)
    with ps.process_group(group):
        first = there_and_back.map(x, [2, 3])
        (FOLDER / f"ready{RANK}").touch()
        while not (FOLDER / "cut").exists():
            time.sleep(0.05)
        try:
            there_and_back.map(x, [2, 3])
            error = "", ""
        except ps.errors.ProcessError as caught:
            error = type(caught).__name__, str(caught)
    print(json.dumps({"values": len(first), "error": error}), flush=True)
    sys.stdout.flush()
    os._exit(0)  # leaving a group whose store cannot be reached would wait for it


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
