"""`penstock bench`: hands over to the benchmark scripts of a source checkout.

The scripts are no part of the installed package, and run with the package beside them. What they
are called and what they take, they say themselves: `penstock bench --list`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_NO_CHECKOUT = """\
penstock bench: there are no benchmark scripts here.
  looked for   benchmarks/__main__.py beside src/penstock
  in           {places}
They are part of the source, not of the installed package: run this inside a checkout of Penstock.
"""


def run_bench(arguments: Sequence[str]) -> int:
    """Run `python -m benchmarks` of the nearest checkout; its exit status, or 2 for none."""
    places = _places()
    root = next((place for place in places if _is_checkout(place)), None)
    if root is None:
        shown = f"\n{' ' * 15}".join(map(str, dict.fromkeys((places[0], places[-1]))))
        print(_NO_CHECKOUT.format(places=shown), file=sys.stderr, end="")
        return 2
    command = [sys.executable, "-m", "benchmarks", *arguments]
    return subprocess.run(command, env=_environment(root), check=False).returncode


def _places() -> list[Path]:
    """Where one stands and all folders around it, then where the package lies."""
    here = Path.cwd()
    return [here, *here.parents, Path(__file__).resolve().parents[2]]


def _is_checkout(folder: Path) -> bool:
    return (folder / "benchmarks" / "__main__.py").is_file() and (folder / "src/penstock").is_dir()


def _environment(root: Path) -> dict[str, str]:
    """Scripts and package of one checkout, whatever lies in the current folder."""
    paths = [str(root / "src"), str(root), os.environ.get("PYTHONPATH", "")]
    found = os.pathsep.join(filter(None, paths))
    return {**os.environ, "PYTHONPATH": found, "PYTHONSAFEPATH": "1"}
