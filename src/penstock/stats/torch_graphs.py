"""Control flow in exported torch graphs: `torch.export` files and TorchScript archives.

Neither is run. TorchScript is deprecated by torch; its warnings are not shown.
"""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import torch

from penstock.stats.contents import Contents, UnreadableError

_CONDITIONALS = frozenset(["cond"])
_LOOPS = frozenset(["while_loop", "scan", "map_impl", "associative_scan"])


def contents_of_export(file: Path) -> Contents:
    """What is in a file that `torch.export.save` wrote."""
    logger = logging.getLogger("torch.export")
    was_disabled, logger.disabled = logger.disabled, True  # a traceback for a foreign file
    try:
        module = torch.export.load(str(file)).graph_module
    except Exception as error:  # whatever a foreign file does to the reader
        raise UnreadableError(f"not an exported program: {_first_line(error)}") from error
    finally:
        logger.disabled = was_disabled
    names = {
        getattr(node.target, "__name__", "")
        for part in module.modules()
        if isinstance(part, torch.fx.GraphModule)
        for node in part.graph.nodes
    }
    return Contents(bool(names & _CONDITIONALS), bool(names & _LOOPS))


def contents_of_script(file: Path) -> Contents:
    """What is in a file that `torch.jit.save` wrote."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            load: Any = torch.jit.load
            graph = load(str(file), map_location="cpu").inlined_graph
    except Exception as error:  # whatever a foreign file does to the reader
        raise UnreadableError(f"not a TorchScript archive: {_first_line(error)}") from error
    kinds = [bool(graph.findAllNodes(kind, recurse=True)) for kind in ("prim::If", "prim::Loop")]
    return Contents(*kinds)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
