"""CaffeNet is the one the paper counts, and narrowing it is exact through groups and norms."""

import fnmatch
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import local_response_norm, max_pool2d

import archlearn as al
from archlearn_cli.models import build_network
from archlearn_paper.caffenet import CaffeNet

SMALL: dict[str, Any] = {"side": 99, "n_outputs": 7, "factor": 1 / 16}
CONVOLUTIONS = ("conv1", "conv2", "conv3", "conv4", "conv5")
EXACT = 1e-10


def count(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def images(n: int = 3, side: int = 99, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 3, side, side, generator=generator, dtype=torch.float64)


def small_net() -> CaffeNet:
    torch.manual_seed(3)
    net = CaffeNet(**SMALL).double().eval()
    with torch.no_grad():
        for name, parameter in net.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.1)
    # The published strength hardly shows on small activations; here it must.
    net.norm1.alpha = net.norm2.alpha = 0.5
    return net


def move_gates_(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for gate in al.width_gates(model).values():
            gate.copy_(torch.rand(gate.shape, generator=generator))


def test_whole_network_has_the_parameters_that_the_paper_counts() -> None:
    with torch.device("meta"):
        net = CaffeNet()
    assert count(net) == 60_965_224
    assert [net.get_submodule(n).groups for n in CONVOLUTIONS] == [1, 2, 1, 2, 2]
    assert net.fc6.in_features == 256 * 6 * 6


def test_number_of_classes_is_chosen() -> None:
    with torch.device("meta"):
        net = CaffeNet(n_outputs=200)
    assert count(net) == 60_965_224 - 800 * 4097


def test_layers_stand_in_the_order_of_caffes_own_file() -> None:
    net, x = small_net(), images()
    with torch.no_grad():
        y = max_pool2d(torch.relu(net.conv1(x)), 3, 2)
        y = local_response_norm(y, 5, 0.5, 0.75, 1.0)
        y = max_pool2d(torch.relu(net.conv2(y)), 3, 2)
        y = local_response_norm(y, 5, 0.5, 0.75, 1.0)
        y = torch.relu(net.conv5(torch.relu(net.conv4(torch.relu(net.conv3(y))))))
        y = max_pool2d(y, 3, 2).reshape(len(x), -1)
        y = net.fc8(torch.relu(net.fc7(torch.relu(net.fc6(y)))))
        torch.testing.assert_close(net(x), y)


@pytest.mark.parametrize("seed", range(4))
def test_narrowing_is_exact_through_groups_and_normalisation(seed: int) -> None:
    model = al.add_gates(small_net(), images())
    move_gates_(model, seed)
    compacted = al.compact(model)
    x = images(seed=seed + 10)
    with torch.no_grad():
        difference = (compacted(x) - model(x)).abs().max().item()
    assert difference < EXACT
    dropped = [
        (old.weight.shape, new.weight.shape)
        for name in (*CONVOLUTIONS, "fc6", "fc7")
        for old, new in [(small_net().get_submodule(name), compacted.get_submodule(name))]
        if old.weight.shape == new.weight.shape
    ]
    assert not dropped


def test_comparison_would_show_a_window_that_counts_the_channels_that_are_left() -> None:
    model = al.add_gates(small_net(), images())
    move_gates_(model, 1)
    compacted = al.compact(model)
    compacted.norm1 = nn.LocalResponseNorm(5, 0.5, 0.75, 1.0)
    x = images()
    with torch.no_grad():
        assert (compacted(x) - model(x)).abs().max().item() > 1e-4


def test_both_groups_of_a_convolution_end_with_the_same_width() -> None:
    model = al.add_gates(small_net(), images())
    move_gates_(model, 2)
    compacted = al.compact(model)
    halves = {"conv1": 3, "conv2": 8, "conv3": 12, "conv4": 12, "conv5": 8}
    gates = {name: gate.numel() for name, gate in al.width_gates(model).items()}
    assert {name: gates[name] for name in halves} == halves
    for name in ("conv2", "conv4", "conv5"):
        layer = compacted.get_submodule(name)
        assert isinstance(layer, nn.Conv2d)
        assert layer.groups == 2
        assert layer.out_channels % 2 == 0


def test_depth_is_offered_where_layers_can_merge_and_merging_is_exact() -> None:
    model = al.add_gates(small_net(), images())
    assert set(al.depth_gates(model)) == {"fc6", "fc7"}
    move_gates_(model, 5)
    with torch.no_grad():
        al.depth_gates(model)["fc7"].fill_(0.9)
    compacted = al.compact(model)
    x = images(seed=6)
    with torch.no_grad():
        assert (compacted(x) - model(x)).abs().max().item() < EXACT
    assert sum(isinstance(m, nn.Linear) for m in compacted.modules()) == 2


@pytest.mark.parametrize(
    ("left", "learnt"),
    [
        (("conv*",), {"fc6", "fc7"}),
        (("fc*",), set(CONVOLUTIONS)),
        (("conv[1234]",), {"conv5", "fc6", "fc7"}),
        ((), {*CONVOLUTIONS, "fc6", "fc7"}),
    ],
)
def test_gates_stand_where_asked_and_start_without_changing_anything(
    left: tuple[str, ...], learnt: set[str]
) -> None:
    net, x = small_net(), images()
    learn = {"*": al.Learn.WIDTH | al.Learn.DEPTH, **dict.fromkeys(left, al.Learn.NOTHING)}
    model = al.add_gates(net, x, learn=learn)
    assert set(al.width_gates(model)) == learnt
    assert not any(fnmatch.fnmatch(name, glob) for name in al.width_gates(model) for glob in left)
    with torch.no_grad():
        assert torch.equal(model(x), net(x))


def test_a_run_builds_it_by_the_name_of_its_function() -> None:
    name = "archlearn_paper.caffenet:build_eighth"
    net = build_network(name, (3, 67, 67), 5)
    assert net(torch.zeros(1, 3, 67, 67)).shape == (1, 5)
    assert net.get_submodule("conv2").out_channels == 32
    with pytest.raises(al.InputError, match=r"at least 67 x 67 .*--resize 227"):
        build_network("archlearn_paper.caffenet:build", (3, 64, 64), 5)


def test_narrowed_network_is_saved_and_loaded(tmp_path: object) -> None:
    model = al.add_gates(small_net(), images())
    move_gates_(model, 2)
    compacted = al.compact(model)
    path = f"{tmp_path}/small.safetensors"
    al.save(compacted, path)
    x = images(seed=3)
    with torch.no_grad():
        torch.testing.assert_close(al.load(path)(x), compacted(x), rtol=0, atol=EXACT)
