"""A NaN is traced to its block, its instance and its line, forward and backward."""

import warnings

import pytest
import torch

import penstock as ps
from penstock.errors import NanError


@ps.function
def logarithm(x):
    shifted = x - 1
    result = torch.log(shifted)  # the forward NaN
    return result * 2


@ps.function
def root(x, n):
    def step(k, h):
        h = h * 0.5
        h = torch.sqrt(h) * 0  # the backward NaN
        return k + 1, h + x

    return ps.while_loop(lambda k, h: k < n, step, (0, x))[1]


def line_of(function, text):
    import inspect

    lines, first = inspect.getsourcelines(function.__wrapped__)
    return first + next(number for number, line in enumerate(lines) if text in line)


@pytest.mark.parametrize("asks", [False, True], ids=["without gradients", "with gradients"])
def test_a_forward_nan_names_instance_block_and_line(asks):
    x = torch.tensor([3.0, 2.0, 0.0], requires_grad=asks)
    with pytest.raises(NanError) as caught, ps.profile(check_nan=True):
        logarithm.map(x)
    message = str(caught.value)
    assert message.startswith("A computed value is NaN.\n")
    assert f"test_nans.py:{line_of(logarithm, 'forward NaN')}, in logarithm" in message
    assert "instance  2" in message
    assert "logarithm:" in message


def test_an_instance_that_is_nan_already_is_not_to_blame():
    with ps.profile(check_nan=True):
        logarithm.map(torch.tensor([3.0, torch.nan]))


def check_backward(caught):
    message = str(caught.value)
    assert message.startswith("The gradient of a value is NaN.\n")
    assert f"test_nans.py:{line_of(root, 'backward NaN')}, in step" in message
    assert "instance  1" in message
    assert ".backward" in message


def test_a_backward_nan_names_instance_block_and_line():
    x = torch.tensor([1.0, 0.0], requires_grad=True)
    with pytest.raises(NanError) as caught, ps.profile(check_nan=True):
        sum(root.map(x, [1, 1])).backward()
    check_backward(caught)


def test_anomaly_mode_names_the_users_line():
    x = torch.tensor([1.0, 0.0], requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError) as caught, torch.autograd.detect_anomaly():
            sum(root.map(x, [1, 1])).backward()
    check_backward(caught)


def test_anomaly_mode_changes_nothing_where_all_is_well():
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    (expected,) = torch.autograd.grad(sum(root.map(x, [2, 3])), x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly():
            (grad,) = torch.autograd.grad(sum(root.map(x, [2, 3])), x)
    torch.testing.assert_close(grad, expected)


def test_without_asking_a_nan_passes_as_in_torch():
    x = torch.tensor([1.0, 0.0], requires_grad=True)
    (grad,) = torch.autograd.grad(sum(root.map(x, [1, 1])), x)
    assert grad.isnan().tolist() == [False, True]
