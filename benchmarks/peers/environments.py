"""Where the environments of the peers are, and what is installed in each."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: What pip installs for each peer.
REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "tensorflow": ("tensorflow-cpu==2.21.0",),
    "jax": ("jax==0.10.2",),
    "dynet": ("dyNET38==2.2", "numpy"),
}


def folder() -> Path:
    """One environment for each peer is in here; PENSTOCK_PEERS names another place."""
    return Path(os.environ.get("PENSTOCK_PEERS", ROOT / ".peers"))


def python_of(peer: str) -> Path:
    """The interpreter of a peer, whether it is there or not."""
    return folder() / peer / "bin" / "python"


def installed() -> list[str]:
    """The peers that have an environment."""
    return [peer for peer in REQUIREMENTS if python_of(peer).exists()]
