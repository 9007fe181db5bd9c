"""Penstock: programs whose control flow depends on the data, written for one example and run for
many at once.
"""

from penstock import data, errors
from penstock.api.control_flow import cond, switch, while_loop
from penstock.api.device import device
from penstock.api.eager import set_eager
from penstock.api.eager_code import batching, unit
from penstock.api.function import Function, function
from penstock.api.fusion import set_fusion
from penstock.api.mapping import map_instances as map
from penstock.api.markers import do_not_convert, shared, static
from penstock.api.memory import memory
from penstock.api.printing import print_tensor as print
from penstock.api.profile import profile
from penstock.api.sequences import foldl, foldr, map_fn, scan
from penstock.capture.tensor_array import TensorArray
from penstock.distributed.joining import join_processes
from penstock.distributed.processes import process_group
from penstock.errors import PenstockWarning

# Written with the names above, as a user would.
from penstock import nn  # isort: skip

__version__ = "0.1.0.dev0"

__all__ = [
    "Function",
    "PenstockWarning",
    "TensorArray",
    "batching",
    "cond",
    "data",
    "device",
    "do_not_convert",
    "errors",
    "foldl",
    "foldr",
    "function",
    "join_processes",
    "map",
    "map_fn",
    "memory",
    "nn",
    "print",
    "process_group",
    "profile",
    "scan",
    "set_eager",
    "set_fusion",
    "shared",
    "static",
    "switch",
    "unit",
    "while_loop",
]
