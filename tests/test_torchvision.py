"""Models that people have, from torchvision, are learnt and compacted exactly."""

import warnings
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import archlearn as al
from benchmarks.torchvision_import import classification_models, import_models
from benchmarks.torchvision_sides import (
    build,
    drop_half_,
    example,
    n_parameters,
    relative_difference,
    spread,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("torchvision") is None, reason="torchvision is not installed"),
]

NAMES = (
    "alexnet",
    "convnext_tiny",
    "densenet121",
    "efficientnet_b0",
    "googlenet",
    "mobilenet_v3_small",
    "resnet18",
    "shufflenet_v2_x0_5",
    "swin_t",
)


@pytest.mark.parametrize("name", NAMES)
def test_half_of_every_group_goes_and_the_function_stays(name: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        # Two of the models warn about how they will start in a later version.
        warnings.simplefilter("ignore")
        net = build(name)
    gated = al.add_gates(net, example(name))
    drop_half_(gated, seed=1)
    small = al.compact(gated)
    assert al.width_gates(gated)
    assert n_parameters(small) < n_parameters(net) / 2
    al.save(small, tmp_path / "small.safetensors")
    loaded = al.load(tmp_path / "small.safetensors")
    images = 10 * example(name)  # of small ones, half of a bottleneck leaves little that differs
    with torch.no_grad():
        expected = gated.eval()(images)
        for found in (small.eval()(images), loaded.eval()(images)):
            assert relative_difference(expected, found) <= 1e-10
    assert spread(expected) > 1e-3


def test_user_keeps_the_class_and_the_names() -> None:
    net = build("resnet18")
    small = al.compact(al.add_gates(net, example("resnet18")))
    assert isinstance(small, import_models().ResNet)
    assert list(small.state_dict()) == list(net.state_dict())


def test_list_holds_the_eighty_classification_models() -> None:
    assert len(classification_models()) >= 80
