"""When a call is over, nothing of it is left: no row, no slot, no array."""

import pytest
import torch

from tests.inside import assert_no_leak, collected_machines
from tests.semantics.programs import PROGRAMS
from tests.semantics.ways import WAYS, WITHOUT_GRAPH


@pytest.mark.parametrize("way", [way for way in WAYS if way not in WITHOUT_GRAPH])
@pytest.mark.parametrize("name", PROGRAMS)
def test_nothing_is_left_of_a_call(name, way):
    case = PROGRAMS[name].case(PROGRAMS[name].dtypes[0])
    with torch.no_grad(), collected_machines() as machines:
        WAYS[way](case)
    assert_no_leak(machines)
