"""Makes the environments of peers: `python -m benchmarks.peers.install [NAME ...]`.

Each is a virtual environment under .peers, which git does not see; removing the folder undoes it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence

from benchmarks.peers.environments import REQUIREMENTS, folder, python_of


def install(peer: str) -> bool:
    """Make an environment and install the peer; whether that worked."""
    print(f"{peer}: {' '.join(REQUIREMENTS[peer])} into {folder() / peer}", flush=True)
    steps = [
        [sys.executable, "-m", "venv", str(folder() / peer)],
        [str(python_of(peer)), "-m", "pip", "install", "--quiet", *REQUIREMENTS[peer]],
    ]
    return all(subprocess.run(step, check=False).returncode == 0 for step in steps)


def main(arguments: Sequence[str] | None = None) -> int:
    """Install what is named, or all; 1 if one failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.install", description=__doc__)
    parser.add_argument("peers", nargs="*", metavar="NAME", help=", ".join(REQUIREMENTS))
    names = parser.parse_args(arguments).peers or list(REQUIREMENTS)
    unknown = [name for name in names if name not in REQUIREMENTS]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(REQUIREMENTS)}")
    failed = [name for name in names if not install(name)]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
