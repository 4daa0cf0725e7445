"""Where a model cannot be followed as a whole, the error names the part that can be learnt."""

import re
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import archlearn as al
from benchmarks.torchvision_import import import_models
from benchmarks.torchvision_sides import drop_half_


def layers(*widths: int) -> nn.Sequential:
    pairs = pairwise(widths)
    found = [layer for n_in, n_out in pairs for layer in (nn.Linear(n_in, n_out), nn.ReLU())]
    return nn.Sequential(*found[:-1])


class Detector(nn.Module):
    """Goes through what it finds one by one, as detectors do."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(8, 3)

    def forward(self, images: list[Tensor]) -> list[Tensor]:
        features = self.backbone(torch.stack(images))
        return [self.head(found[found > 0].sum() + found) for found in features if found.sum() > -9]


class InAList(Detector):
    """Keeps its backbone in a list."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__(backbone)
        self.stages = nn.ModuleList([self.backbone])
        del self.backbone

    @property
    def backbone(self) -> nn.Module:
        return self.stages[0]

    @backbone.setter
    def backbone(self, module: nn.Module) -> None:
        pass


def images(n: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randn(6, dtype=torch.float64, generator=generator) for _ in range(n)]


def follow_advice(message: str, model: nn.Module, x: Any) -> nn.Module:
    """Do what an error says, with half of the gates closed in between."""
    first, last = re.findall(r"`(model\S+ = [^`]+)`", message)
    names: dict[str, Any] = {"model": model, "al": al, "x": x}
    exec(first, names)
    drop_half_(model, seed=1)
    expected = model(images())
    exec(last, names)
    torch.testing.assert_close(model(images()), expected, rtol=1e-10, atol=1e-10)
    return model


def test_a_detector_is_told_to_learn_its_backbone() -> None:
    model = Detector(layers(6, 16, 16, 8)).double().eval()
    with pytest.raises(al.TracingError, match=r"'backbone'.*shape \(3, 6\)") as caught:
        al.add_gates(model, (images(),))
    small = follow_advice(str(caught.value), model, torch.stack(images()))
    assert small.get_submodule("backbone.0").out_features == 8  # pyright: ignore


def test_a_part_in_a_list_is_named_by_its_position() -> None:
    model = InAList(layers(6, 16, 16, 8)).double().eval()
    with pytest.raises(al.TracingError, match=r"model\.stages\[0\] = ") as caught:
        al.add_gates(model, (images(),))
    follow_advice(str(caught.value), model, torch.stack(images()))


class TakesAList(nn.Module):
    """A backbone that takes its images as a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = layers(6, 16, 8)

    def forward(self, images: list[Tensor]) -> Tensor:
        return self.layers(torch.stack(images))


def test_a_part_that_takes_a_list_gets_it_in_a_tuple() -> None:
    class Whole(Detector):
        def forward(self, images: list[Tensor]) -> list[Tensor]:
            return [found for found in self.backbone(images) if found.sum() > -9]

    model = Whole(TakesAList()).double().eval()
    with pytest.raises(al.TracingError, match=r"x = \(\[\(6,\), \(6,\)\],\), a tensor") as caught:
        al.add_gates(model, (images(2),))
    follow_advice(str(caught.value), model, (images(2),))


def test_inspect_gives_the_same_advice() -> None:
    model = Detector(layers(6, 16, 8)).double()
    with pytest.raises(al.TracingError, match="'backbone'"):
        al.inspect(model, (images(),))
    assert model.training


def test_a_part_that_cannot_be_learnt_either_is_not_named() -> None:
    model = Detector(nn.Linear(6, 8)).double()
    with pytest.raises(al.TracingError) as caught:
        al.add_gates(model, (images(),))
    assert "backbone" not in str(caught.value)


def test_a_part_that_is_little_of_the_model_is_not_named() -> None:
    model = Detector(layers(6, 2, 8)).double()
    model.head = nn.Sequential(nn.Linear(8, 500), nn.Linear(500, 3)).double()
    with pytest.raises(al.TracingError) as caught:
        al.add_gates(model, (images(),))
    assert "backbone" not in str(caught.value)


def test_a_part_whose_weights_are_used_elsewhere_is_not_named() -> None:
    model = Detector(layers(6, 16, 8)).double()
    model.also = model.backbone[0]
    with pytest.raises(al.TracingError) as caught:
        al.add_gates(model, (images(),))
    assert "add_gates(model.backbone" not in str(caught.value)


@pytest.mark.skipif(find_spec("torchvision") is None, reason="torchvision is not installed")
def test_detectors_of_torchvision_are_learnt_by_their_backbone() -> None:
    import_models()
    from torchvision.models.detection import RetinaNet

    class Backbone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(
                nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 128, 3, 2, 1)
            )
            self.out_channels = 128

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(x)

    torch.manual_seed(0)
    model = RetinaNet(Backbone(), num_classes=3, min_size=32, max_size=32)
    model.head = nn.Identity()  # of no matter here, and large
    model.eval()
    picture = torch.rand(3, 32, 32)
    with pytest.raises(al.TracingError, match=r"'backbone'.*shape \(2, 3, 32, 32\)"):
        al.add_gates(model, ([picture, picture],))
    model.backbone = al.add_gates(model.backbone, torch.rand(2, 3, 32, 32))
    assert al.width_gates(model)
