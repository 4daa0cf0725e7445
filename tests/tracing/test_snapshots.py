"""Numbers of many tensors are put back at once, whatever wrote to them."""

import pytest
import torch
from torch import Tensor, nn

from archlearn.tracing.module_state import ModuleState, capture_state

KINDS = (torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int64, torch.bool)


def make() -> list[Tensor]:
    many = [torch.arange(6).reshape(2, 3).to(kind) for kind in KINDS]
    return [*many, torch.tensor(3.0), torch.zeros(0), torch.ones(4, 3).T, torch.ones(2).half()]


def snapshot_of(tensors: list[Tensor]) -> ModuleState:
    """Take down a module with these buffers."""
    module = nn.Module()
    for place, tensor in enumerate(tensors):
        module.register_buffer(f"buffer_{place}", tensor)
    return capture_state(module)


@pytest.mark.parametrize("place", range(len(make())))
def test_each_is_put_back_alone(place: int) -> None:
    tensors = make()
    snapshot = snapshot_of(tensors)
    tensors[place].data.zero_()  # no version tells of it
    snapshot.put_back()
    for tensor, before in zip(tensors, make(), strict=True):
        assert torch.equal(tensor, before)
        assert tensor.stride() == before.stride()


def test_what_is_counted_is_found() -> None:
    tensors = make()
    snapshot = snapshot_of(tensors)
    assert snapshot.find_changed() == ""
    tensors[2].add_(1)
    assert snapshot.find_changed() == "buffer_2"
    snapshot.put_back()
    assert snapshot.find_changed() == ""


def test_what_is_no_number_is_put_back() -> None:
    tensor = torch.tensor([1.0, torch.nan])
    snapshot = snapshot_of([tensor, torch.ones(2)])
    tensor.data[0] = 5.0
    snapshot.put_back()
    torch.testing.assert_close(tensor, torch.tensor([1.0, torch.nan]), equal_nan=True)


def test_nothing_is_written_where_nothing_has_changed() -> None:
    tensors = make()
    versions = [tensor._version for tensor in tensors]
    snapshot_of(tensors).put_back()
    assert [tensor._version for tensor in tensors] == versions


@pytest.mark.filterwarnings("ignore")  # such tensors are old, or new
def test_tensors_of_other_kinds_are_kept_apart() -> None:
    sparse = torch.eye(3).to_sparse()
    quantized = torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    plain = torch.ones(2)
    snapshot = snapshot_of([sparse, quantized, torch.empty(2, device="meta"), nested, plain])
    plain.data.zero_()
    quantized.copy_(torch.zeros(2))
    snapshot.put_back()
    assert plain.tolist() == [1, 1]
    assert torch.equal(quantized.dequantize(), torch.ones(2))


def test_tensors_of_inference_mode_are_put_back() -> None:
    with torch.inference_mode():
        tensor = torch.ones(3)
        snapshot = snapshot_of([tensor])
        tensor.zero_()
    snapshot.put_back()
    assert tensor.tolist() == [1, 1, 1]


@pytest.mark.filterwarnings("ignore")  # torch calls this dtype experimental
def test_numbers_that_cannot_be_compared_are_put_back() -> None:
    rare, other = torch.ones(2).to(torch.complex32), torch.ones(2).to(torch.complex32)
    snapshot = snapshot_of([rare, other])
    snapshot.put_back()
    rare.zero_()
    snapshot.put_back()
    assert rare.tolist() == other.tolist() == [1, 1]


def test_the_sign_of_zero_is_put_back() -> None:
    tensor = torch.tensor([-0.0, 1.0])
    snapshot = snapshot_of([tensor])
    tensor.add_(0.0)
    snapshot.put_back()
    assert tensor.signbit().tolist() == [True, False]


def test_a_tensor_that_learns_is_put_back() -> None:
    tensor = torch.ones(3, requires_grad=True)
    snapshot = snapshot_of([tensor])
    tensor.data.zero_()
    snapshot.put_back()
    assert tensor.tolist() == [1, 1, 1]
    assert tensor.is_leaf
