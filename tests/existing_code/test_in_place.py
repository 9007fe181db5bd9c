"""What in-place operations may not do, in torch's own words, and the order of outside changes."""

from __future__ import annotations

import pytest
import torch

import penstock as ps
from tests.existing_code.harness import MAPS, WAYS, Maker, compare, plainly

pytestmark = pytest.mark.usefixtures("unchanged_torch")


def raised(way, fn, *columns):
    with pytest.raises(RuntimeError) as caught:
        way(fn, *columns)
    return str(caught.value)


def change_a_leaf(x):
    x += 1
    return x


def change_an_expanded_row(x):
    y = x[:1].expand(2, 2)
    y += 1
    return y


def set_rows_of_another_size(x):
    y = x * 2
    y[0] = torch.ones(3)
    return y


def resize_by_addition(x):
    y = x[0] * 1
    y += x
    return y


REFUSED = [
    change_a_leaf,
    change_an_expanded_row,
    set_rows_of_another_size,
    resize_by_addition,
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fn", REFUSED, ids=lambda fn: fn.__name__)
def test_what_torch_refuses_is_refused_in_torchs_words(fn, way):
    expected = raised(plainly, fn, Maker().tensors(3, 2, 2))
    found = raised(WAYS[way], fn, Maker().tensors(3, 2, 2))
    assert found.splitlines()[0] == expected.splitlines()[0]


@pytest.mark.parametrize("way", WAYS)
def test_a_tensor_changed_after_use_spoils_backward_or_is_snapshotted(way):
    """Torch refuses this backward; a map either refuses it too or gives the forward's gradient."""
    scratch = torch.ones(2)

    def run(x):
        y = x * scratch
        scratch.mul_(2)
        return y

    rows = Maker().tensors(3, 2)
    outputs = WAYS[way](run, rows)
    for output, row, scale in zip(outputs, rows, (1.0, 2.0, 4.0), strict=True):
        torch.testing.assert_close(output, row * scale)
        try:
            (gradient,) = torch.autograd.grad(output.sum(), row)
        except RuntimeError as error:
            assert "inplace" in str(error) or "in place" in str(error)  # noqa: PT017
        else:
            assert gradient.tolist() == [scale, scale]


@pytest.mark.parametrize("way", WAYS)
def test_an_out_argument_that_is_real_is_written(way):
    def build(make):
        target = torch.zeros(2)
        make.watch(lambda: target.clone())

        def run(x):
            torch.mul(x, 2.0, out=target)
            return target + 1

        return run, make.tensors(3, 2, grad=False)

    compare(build, WAYS[way])


@pytest.mark.parametrize("way", WAYS)
def test_outside_changes_happen_in_the_order_of_the_instances(way):
    def build(make):
        memory = torch.zeros(2)
        w = make.tensor(2)

        def run(x):
            memory.mul_(0.5)
            memory.add_((x * w).detach())
            return memory.clone(), x * memory.clone()

        return run, make.tensors(4, 2)

    compare(build, WAYS[way])


@pytest.mark.parametrize("way", WAYS)
def test_a_parameter_changed_under_no_grad_is_seen_by_later_instances(way):
    def build(make):
        w = make.tensor(2)
        make.watch(lambda: w.detach().clone())

        def run(x):
            y = x + w
            with torch.no_grad():
                w.add_(1.0)
            return y

        return run, make.tensors(3, 2)

    compare(build, WAYS[way])


@pytest.mark.parametrize("way", MAPS)
def test_a_changed_input_requires_grad_from_then_on(way):
    def build(make):
        rows = make.tensors(3, 2, grad=False)
        w = make.tensor(2)
        make.watch(lambda: rows)

        def run(x):
            x += w
            return x * 2

        return run, rows

    compare(build, WAYS[way])


@pytest.mark.parametrize("way", WAYS)
def test_numpy_sees_and_makes_changes_through_shared_memory(way):
    def build(make):
        def run(x):
            array = (x * 2).numpy()
            array[0] = 7.0
            return torch.from_numpy(array).clone() + x

        return run, make.tensors(3, 2, grad=False)

    compare(build, WAYS[way])


def test_a_value_changed_after_it_was_read_is_read_anew():
    def run(x):
        y = x * 2
        numbers = [y.sum().item()]
        y += 1
        numbers.append(y.sum().item())
        y[0] = 0
        numbers.append(y.sum().item())
        return numbers

    rows = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 5.0])]
    assert ps.map(run, rows) == plainly(run, rows)
