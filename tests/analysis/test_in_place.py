"""What lies in the same memory changes together, and a label would not say so."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import archlearn as al


class Net(nn.Module):
    """Two layers; subclasses change the features between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)


class ByAPart(Net):
    """A part of the features is changed by its own name."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x[:, :4].add_(1.0)
        return self.last(x)


class ByAView(Net):
    """All features are changed by another name."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x.view(-1, 2, 4).add_(1.0)
        return self.last(x)


class ByAnOperator(Net):
    """Python would make a new tensor of a traced value."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        view = x.unsqueeze(1)
        view += 1.0
        return self.last(x)


class ByItsResult(Net):
    """The result of the change is read, and nothing else."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        return self.last(x.unsqueeze(1).mul_(2.0).flatten(1))


class OfACopy(Net):
    """What is changed is a copy."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x.clone().add_(1.0)
        return self.last(x)


def inputs() -> Tensor:
    return torch.randn(5, 6, dtype=torch.float64)


@pytest.mark.parametrize("network", [ByAPart, ByAView])
def test_a_change_through_a_view_is_refused(network: type[Net]) -> None:
    with pytest.raises(
        al.InputError, match=r"in place by \w+\(\) at test_in_place.* and read again"
    ):
        al.add_gates(network().double(), inputs())


def test_an_operator_on_a_view_is_refused() -> None:
    with pytest.raises(al.TracingError, match=r"such as .* \+= on a view of another tensor"):
        al.add_gates(ByAnOperator().double(), inputs())


@pytest.mark.parametrize("network", [ByItsResult, OfACopy])
def test_a_change_that_nobody_else_sees_is_exact(network: type[Net]) -> None:
    torch.manual_seed(0)
    model = al.add_gates(network().double(), inputs()).eval()
    with torch.no_grad():
        al.width_gates(model)["first"][::2] = 0.1
    small, x = al.compact(model), inputs()
    torch.testing.assert_close(small(x), model(x), rtol=0, atol=1e-10)
    assert al.read_architecture(model).widths == (4, 3)


class AsStatements(Net):
    """Tensors are changed, and read by the names that they had."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        kept = x
        x.relu_()
        x.mul_(2.0)
        kept.div_(3.0).add_(x)
        return self.last(x)


def test_statements_that_change_a_tensor_are_followed() -> None:
    torch.manual_seed(0)
    net = AsStatements().double()
    model = al.add_gates(net, inputs()).eval()
    x = inputs()
    torch.testing.assert_close(model(x), net(x), rtol=0, atol=1e-12)
    with torch.no_grad():
        al.width_gates(model)["first"][::2] = 0.1
    small = al.compact(model)
    torch.testing.assert_close(small(x), model(x), rtol=0, atol=1e-10)
    assert al.read_architecture(model).widths == (4, 3)


class MaskByItems(Net):
    """A mask of tokens is written item by item, as torchvision's Swin does."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        mask = x.new_zeros(x.size(1))
        for place in range(2):
            mask[place : place + 2] = place + 1.0
        return self.last(x * mask[:, None])


class ItemsOfFeatures(Net):
    """Two features are overwritten: their layer keeps what it writes."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        x[..., :2] = 0.5
        return self.last(torch.relu(x))


class ItemsUnderAView(Net):
    """A part that was taken before changes with the whole, which a trace does not show."""

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        mask = x.new_zeros(x.size(1))
        part = mask[:1]
        mask[0] = 0.5
        return self.last(x * mask[:, None]) + part


def tokens() -> Tensor:
    return torch.randn(2, 4, 6, dtype=torch.float64)


def test_a_mask_that_is_written_item_by_item_is_followed(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = MaskByItems().double()
    model = al.add_gates(net, tokens()).eval()
    x = torch.randn(3, 7, 6, dtype=torch.float64)
    torch.testing.assert_close(model(x), net(x), rtol=0, atol=1e-12)
    with torch.no_grad():
        al.width_gates(model)["first"][::2] = 0.1
    small = al.compact(model)
    assert al.read_architecture(model).widths == (4, 3)
    al.save(small, tmp_path / "small.safetensors")
    for found in (small, al.load(tmp_path / "small.safetensors")):
        torch.testing.assert_close(found(x), model(x), rtol=0, atol=1e-10)


def test_features_that_are_overwritten_stay() -> None:
    with pytest.raises(al.InputError, match=r"items of it are set at .*; write it"):
        al.add_gates(ItemsOfFeatures().double(), tokens())


def test_items_that_change_under_a_view_are_refused() -> None:
    with pytest.raises(al.TracingError, match="on a view of another tensor"):
        al.add_gates(ItemsUnderAView().double(), tokens())
