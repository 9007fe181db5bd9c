"""When a call is over, nothing of it is left, whatever came last: `test_agreement` looks at every
program of the table.
"""

import torch

import penstock as ps
from tests.inside import assert_no_leak, collected_machines
from tests.semantics.agreement import assert_agree
from tests.semantics.table import Case
from tests.semantics.ways import WAYS


@ps.function
def either(n, x, y):
    return ps.cond(n > 0, lambda: torch.sin(x), lambda: torch.cos(y))


def grow(x, factor):
    return ps.while_loop(lambda y: y.norm() < 1000, lambda y: y * factor, x)


def test_a_row_waits_for_an_argument_that_it_does_not_read():
    """Such an argument may come when all else is done, and must find the row that it was for."""

    @ps.function
    def program(x, n):
        first = either(n, x, grow(x, 2.0))
        second = ps.cond(x.sum() > 0, lambda: either(n - 1, x, grow(x, 1.1)), lambda: x)
        return first, second

    case = Case(program.__wrapped__, program, [(torch.ones(2) * k, 1) for k in range(1, 4)])
    with torch.no_grad(), collected_machines() as machines:
        actual = WAYS["map"](case)
    assert_agree(actual, WAYS["eager"](case), "outputs")
    assert_no_leak(machines)


def test_an_iteration_waits_for_a_carried_value_that_it_does_not_read():
    @ps.function
    def program(x, n):
        def body(i, y, spare):
            return i + 1, y + spare, grow(y, 1.5)

        return ps.while_loop(lambda i, y, spare: i < n, body, (0, x, x))[1]

    case = Case(program.__wrapped__, program, [(torch.ones(2), n) for n in (0, 3, 1)])
    with torch.no_grad(), collected_machines() as machines:
        actual = WAYS["map"](case)
    assert_agree(actual, WAYS["eager"](case), "outputs")
    assert_no_leak(machines)
