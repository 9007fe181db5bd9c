"""Each rule of the verifier of programs catches a program that breaks it, and no small program
does.
"""

import pytest

from penstock.ir.program import (
    Body,
    Branch,
    Call,
    Captured,
    Constant,
    Element,
    ForEach,
    Function,
    Loop,
    Node,
    Operand,
    Program,
    RandomKey,
    RowLoop,
    TorchCall,
    Value,
)
from penstock.ir.types import ArrayType, TensorType
from penstock.ir.verify import PROGRAM_RULES, VerificationError, are_copies, verify_program
from tests.small_programs import SMALL

FLOAT, VECTOR, INTEGER = TensorType("float32"), TensorType("float32", (2,)), TensorType("int64")
SEQUENCE = TensorType("float32", ("n0", 2))

x, y, z = (Value(number, FLOAT) for number in range(3))
i, v, xs = Value(3, INTEGER), Value(4, VECTOR), Value(5, SEQUENCE)


def program(inputs, nodes, outputs, *others):
    return Program((Function("f", Body(inputs, tuple(nodes), outputs)), *others), (VECTOR,))


def negation(value, result):
    return Node(TorchCall("torch.neg", (Operand(0),)), (value,), (result,))


def choice(index, *outputs, is_cond=True):
    bodies = tuple(Body((), (), (value,)) for value in outputs)
    return Node(Branch(bodies, is_cond), (index,), (z,))


BROKEN = {
    "a value is defined once": program((x,), [negation(x, y), negation(x, y)], (y,)),
    "a value is defined before it is read, in a body around": program(
        (x,), [negation(y, z), negation(x, y)], (z,)
    ),
    "a call names a function of the program": program((x,), [Node(Call("g"), (x,), (y,))], (y,)),
    "copies agree in number and type": program((i, x, v), [choice(i, x, v)], (z,)),
    "a branch or loop is chosen by one scalar": program((v, x, y), [choice(v, x, y)], (z,)),
    "an index is a whole number": program((xs, x), [Node(Element(), (xs, x), (v,))], (v,)),
    "a for-each takes one element of each sequence": program(
        (xs,), [Node(ForEach(Body((x,), (), (x,))), (xs,), (Value(9, ArrayType(FLOAT)),))], ()
    ),
    "a torch call takes all its inputs": program(
        (x, y), [Node(TorchCall("torch.neg", (Operand(0),)), (x, y), (z,))], (z,)
    ),
    "a closed loop reads its inputs and nothing else": program(
        (x, y), [Node(RowLoop(Body((x,), (negation(y, z),), (z,))), (x,), (z,))], (z,)
    ),
    "a capture is one of the program's": program((), [Node(Captured(1), (), (v,))], (v,)),
    "what draws random keys in a body has a site of its own": program(
        (),
        [
            Node(RandomKey((0,)), (), (i,), site=(0,)),
            Node(RandomKey((0,)), (), (Value(9, INTEGER),), site=(0,)),
        ],
        (i,),
    ),
}


def test_every_rule_has_a_program_that_breaks_it():
    assert list(BROKEN) == list(PROGRAM_RULES)


@pytest.mark.parametrize("rule", BROKEN)
def test_a_program_that_breaks_a_rule_is_caught(rule):
    with pytest.raises(VerificationError) as caught:
        verify_program(BROKEN[rule])
    assert caught.value.rule == rule
    assert str(caught.value).startswith(f"not so: {rule}\n")


@pytest.mark.parametrize("name", SMALL)
def test_small_programs_keep_all_rules(name):
    verify_program(SMALL[name]().program)


def test_a_loop_must_carry_what_it_takes():
    condition = Body((y,), (Node(Constant(True), (), (i,)),), (i,))
    loop = Loop(condition, Body((Value(9, FLOAT),), (), (v,)))
    with pytest.raises(VerificationError, match=r"Loop copies float32\[2\] to float32\[\]"):
        verify_program(program((x, v), [Node(loop, (x,), (z,))], (z,)))


def test_an_inner_body_sees_what_is_around_it_and_nothing_else():
    inside = Body((), (negation(x, y),), (y,))
    branch = Node(Branch((inside, Body((), (), (x,))), True), (i,), (z,))
    verify_program(program((x, i), [branch], (z,)))
    with pytest.raises(VerificationError, match="a body returns"):
        verify_program(program((x, i), [branch], (y,)))


def test_copies_may_differ_in_symbols_and_in_unknown_elements():
    assert are_copies(TensorType("int64", ("n0", 2)), TensorType("int64", ("n1", 2)))
    assert not are_copies(TensorType("int64", ("n0", 2)), TensorType("int64", (3, 2)))
    assert are_copies(ArrayType(), ArrayType(FLOAT))
    assert not are_copies(ArrayType(VECTOR), ArrayType(FLOAT))
    assert not are_copies(FLOAT, TensorType("float32", device="cuda:0"))
