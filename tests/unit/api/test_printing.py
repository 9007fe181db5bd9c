import pytest
import torch

import penstock as ps


@pytest.fixture(autouse=True)
def _float32():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(before)


@ps.function
def doubled(x, times):
    for _ in range(times):
        x = ps.print(x * 2, "x:")
    return x


def lines(capsys):
    return capsys.readouterr().out.splitlines()


def test_a_launch_prints_a_line_for_each_row(capsys):
    doubled.map(torch.tensor([1.0, 2.0]), [1, 2])
    first, second, third = lines(capsys)
    assert sorted([first, second]) == ["x: tensor(2.)", "x: tensor(4.)"]
    assert third == "x: tensor(8.)"


def test_plain_python_prints_the_same_for_one_instance(capsys):
    doubled(torch.tensor(1.0), 2)
    traced = lines(capsys)
    with ps.set_eager(True):
        doubled(torch.tensor(1.0), 2)
    assert lines(capsys) == traced
    assert len(traced) == 2


def test_eager_code_prints_in_a_map_too(capsys):
    ps.map(lambda x: ps.print(x + 1), torch.tensor([1, 2]).unbind())
    assert lines(capsys) == ["tensor(2)", "tensor(3)"]


@pytest.mark.filterwarnings("error")
def test_backward_prints_nothing_and_gradients_pass(capsys):
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    result = doubled.map(x, [1, 3], out="stack")
    capsys.readouterr()
    (grad,) = torch.autograd.grad(result.sum(), x)
    assert grad.tolist() == [2, 8]
    assert lines(capsys) == []


def test_what_no_output_needs_is_not_printed(capsys):
    @ps.function
    def forgetful(x):
        ps.print(x + 1)
        return x

    forgetful.map(torch.ones(2))
    assert lines(capsys) == []
