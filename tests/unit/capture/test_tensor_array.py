import pytest
import torch

from penstock.capture.tensor_array import TensorArray
from penstock.errors import ArgumentError, IndexRangeError, SizeError, StructureError


def lines(error) -> list[str]:
    """The lines of an error text without the line that says where."""
    return [line for line in str(error.value).splitlines() if not line.startswith("  at ")]


def test_write_leaves_older_versions_as_they_are():
    empty = TensorArray(2)
    first = empty.write(0, 1)
    second = first.write(0, 2)
    assert first.read(0) == 1
    assert second.read(0) == 2
    with pytest.raises(IndexRangeError):
        empty.read(0)


def test_indices_and_sizes_may_be_tensors():
    array = TensorArray(torch.tensor(3)).write(torch.tensor(2), torch.ones(4))
    assert array.read(torch.tensor([2])).tolist() == [1.0] * 4
    assert array.size().equal(torch.tensor(3))


def test_a_dynamic_array_grows_to_the_largest_index_written():
    array = TensorArray(0, dynamic_size=True).write(2, 5)
    assert array.size() == 3
    assert array.read(2) == 5
    assert repr(array) == "TensorArray(size=3, written=1)"


def test_unstack_and_stack_are_inverse():
    tensor = torch.arange(6).view(3, 2)
    assert TensorArray.unstack(tensor).stack().equal(tensor)
    assert TensorArray.unstack(tensor[:0]).stack().equal(tensor[:0])


def test_an_empty_array_stacks_to_the_type_of_like():
    stacked = TensorArray(0, like=torch.zeros(3, dtype=torch.bool)).stack()
    assert stacked.shape == (0, 3)
    assert stacked.dtype == torch.bool


def test_gradients_flow_from_reads_to_writes():
    x = torch.tensor(2.0, requires_grad=True)
    array = TensorArray(2).write(0, x * x).write(1, x)
    (array.stack() * torch.tensor([3.0, 5.0])).sum().backward()
    assert x.grad == 17


def test_an_element_that_was_never_written_cannot_be_read():
    with pytest.raises(IndexRangeError) as error:
        TensorArray(3).write(0, 1).read(1)
    assert lines(error) == [
        "TensorArray.read: this element was never written.",
        "  index  1",
        "  size   3",
        "Write element 1 first, and use the array that write returns.",
    ]


@pytest.mark.parametrize("index", [-1, 3])
def test_an_index_out_of_range_cannot_be_read(index):
    with pytest.raises(IndexRangeError) as error:
        TensorArray(3, dynamic_size=True).read(index)
    assert lines(error) == [
        "TensorArray.read: index out of range.",
        f"  index  {index}",
        "  size   3",
        "Use an index from 0 to size - 1; dynamic_size=True lets write go beyond the end.",
    ]


def test_an_index_out_of_range_cannot_be_written():
    with pytest.raises(IndexRangeError, match=r"TensorArray\.write: index out of range\."):
        TensorArray(3).write(3, 1)
    with pytest.raises(IndexRangeError, match=r"TensorArray\.write: index out of range\."):
        TensorArray(3, dynamic_size=True).write(-1, 1)


def test_a_negative_size_is_an_error():
    with pytest.raises(SizeError) as error:
        TensorArray(-2)
    assert lines(error) == [
        "TensorArray: size must not be negative.",
        "  size      -2",
        "  expected  0 or more",
        "Pass a size of at least 0.",
    ]


@pytest.mark.parametrize(
    ("index", "shown"),
    [(torch.tensor(1.0), "float32[]"), (torch.tensor([0, 1]), "int64[2]"), (True, "bool")],
)
def test_an_index_that_is_not_one_whole_number_is_an_error(index, shown):
    with pytest.raises(ArgumentError) as error:
        TensorArray(3).read(index)
    assert lines(error) == [
        "TensorArray: index must be one whole number.",
        f"  index     {shown}",
        "  expected  an int or int64[]",
        "Convert it first, e.g. with .to(torch.int64), and pass one index at a time.",
    ]


def test_an_array_with_unwritten_elements_cannot_be_stacked():
    with pytest.raises(IndexRangeError) as error:
        TensorArray(2).write(0, 1).stack()
    assert lines(error)[:3] == [
        "TensorArray.stack: an element was never written.",
        "  index  1",
        "  size   2",
    ]


def test_elements_of_different_types_cannot_be_stacked():
    with pytest.raises(StructureError) as error:
        TensorArray(2).write(0, torch.ones(2)).write(1, torch.ones(3)).stack()
    assert lines(error) == [
        "TensorArray.stack: the elements do not have one type.",
        "  element 0  float32[2]",
        "  element 1  float32[3]",
        "Write elements of one type, or read them one by one.",
    ]


def test_an_empty_array_without_a_type_cannot_be_stacked():
    with pytest.raises(StructureError) as error:
        TensorArray(0).stack()
    assert lines(error) == [
        "TensorArray.stack: an empty array has no element type.",
        "  size  0",
        "  like  None",
        "Give the element type: TensorArray(size, like=tensor).",
    ]


def test_like_refuses_elements_of_another_type():
    with pytest.raises(StructureError) as error:
        TensorArray(2, like=torch.ones(2)).write(1, 3)
    assert lines(error) == [
        "TensorArray.write: the value does not have the array's element type.",
        "  element type  float32[2]",
        "  value at 1    int64[]",
        "Write float32[2], or make the array with another `like`.",
    ]


def test_a_single_number_cannot_be_taken_apart():
    with pytest.raises(ArgumentError) as error:
        TensorArray.unstack(torch.tensor(1))
    assert lines(error) == [
        "TensorArray.unstack needs a dimension to take apart.",
        "  tensor  int64[]",
        "Pass a tensor with at least one dimension.",
    ]


def test_an_array_of_the_tracer_is_a_tensor_array_too():
    @TensorArray.register
    class Traced:
        pass

    assert isinstance(Traced(), TensorArray)
