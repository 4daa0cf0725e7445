"""A compact model tells which of the original channels each of its tensors holds."""

from pathlib import Path

import pytest
import safetensors
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import archlearn as al
from archlearn import FileError

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 6, 3, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Conv2d(6, 5, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(80, 4),
        nn.ReLU(),
        nn.Linear(4, 3),
    )


@torch.no_grad()
def compact(
    net: nn.Module, closed: dict[str, list[int]], linear: tuple[str, ...] = ()
) -> nn.Module:
    model = al.add_gates(net, X).eval()
    for name, channels in closed.items():
        al.width_gates(model)[name][channels] = 0.0
    return al.compact(model)


def check(small: nn.Module, net: nn.Module) -> None:
    original, kept = net.state_dict(), al.kept_channels(small)
    for name, tensor in small.state_dict().items():
        assert torch.equal(tensor, select(original[name], kept[name]))


def select(tensor: Tensor, kept: dict[int, tuple[int, ...]]) -> Tensor:
    for dim, indices in kept.items():
        tensor = tensor.index_select(dim, torch.tensor(indices))
    return tensor


def test_the_indices_select_the_compact_tensors_from_the_original_ones() -> None:
    net = network()
    small = compact(net, {"0": [1, 4], "3": [0]})
    kept = al.kept_channels(small)
    assert kept["0.weight"] == {0: (0, 2, 3, 5), 1: (0, 1, 2), 2: (0, 1, 2), 3: (0, 1, 2)}
    assert kept["1.running_var"] == {0: (0, 2, 3, 5)}
    assert kept["1.num_batches_tracked"] == {}
    assert kept["6.weight"][1] == tuple(range(16, 80))
    assert list(kept) == [*dict(small.named_parameters()), *dict(small.named_buffers())]
    for name, tensor in small.state_dict().items():
        torch.testing.assert_close(
            tensor, select(net.state_dict()[name], kept[name]), rtol=0, atol=0
        )


def test_indices_are_the_originals_after_a_second_compaction() -> None:
    net = network()
    small = compact(compact(net, {"0": [1, 4]}), {"0": [1], "3": [3]})
    kept = al.kept_channels(small)
    assert kept["0.weight"][0] == kept["3.weight"][1] == (0, 3, 5)
    assert kept["3.bias"] == {0: (0, 1, 2, 4)}
    for name, tensor in small.state_dict().items():
        torch.testing.assert_close(
            tensor, select(net.state_dict()[name], kept[name]), rtol=0, atol=0
        )


def test_a_merged_layer_has_its_own_inputs_and_the_outputs_of_the_last() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    model = al.add_gates(net, torch.randn(2, 4)).eval()
    with torch.no_grad():
        al.width_gates(model)["0"][[1]] = 0.0
        al.width_gates(model)["2"][[2, 3]] = 0.0
        al.depth_gates(model)["0"].fill_(1.0)
    plan = al.plan(model)
    assert [merge.layers for merge in plan.merges if merge.made] == [("0", "2")]
    kept = al.kept_channels(al.compact(model))
    assert plan.kept()["0.weight"][0] == (0, 1, 4)
    assert kept == {
        "0.weight": {0: (0, 1, 4), 1: (0, 1, 2, 3)},
        "0.bias": {0: (0, 1, 4)},
        "4.weight": {0: (0, 1, 2), 1: (0, 1, 4)},
        "4.bias": {0: (0, 1, 2)},
    }


def test_a_bias_that_constants_made_has_the_rows_of_its_weight() -> None:
    net = nn.Sequential(
        nn.Linear(4, 6), nn.ReLU(), nn.BatchNorm1d(6), nn.Linear(6, 5, bias=False), nn.ReLU(),
        nn.Linear(5, 3),
    )  # fmt: skip
    model = al.add_gates(net, torch.randn(2, 4)).eval()
    with torch.no_grad():
        al.width_gates(model)["0"][[1]] = 0.0
        al.width_gates(model)["3"][[0]] = 0.0
    assert al.plan(model).folds
    assert al.kept_channels(al.compact(model))["3.bias"] == {0: (1, 2, 3, 4)}


def test_tied_tensors_tell_the_same_under_both_names() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.last = (nn.Linear(4, 4) for _ in range(3))
            self.second.bias = self.first.bias

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.first(x).relu() + self.second(x).relu())

    model = al.add_gates(Tied(), torch.randn(2, 4)).eval()
    with torch.no_grad():
        next(iter(al.width_gates(model).values()))[2] = 0.0
    kept = al.kept_channels(al.compact(model))
    assert kept["second.bias"] == kept["first.bias"] == {0: (0, 1, 3)}


def test_a_file_keeps_them(tmp_path: Path) -> None:
    small = compact(network(), {"0": [1, 4], "3": [0]})
    al.save(small, tmp_path / "small.safetensors")
    assert al.kept_channels(al.load(tmp_path / "small.safetensors")) == al.kept_channels(small)


def test_other_models_are_told_what_to_do(tmp_path: Path) -> None:
    al.save(network(), tmp_path / "net.safetensors", X)
    for model in (network(), al.add_gates(network(), X), al.load(tmp_path / "net.safetensors")):
        with pytest.raises(al.InputError, match=r"plan\(model\).kept\(\)"):
            al.kept_channels(model)


@pytest.mark.parametrize(
    "text",
    ["[]", '{"0.weight": 3}', '{"0.weight": {"0": "f"}}', '{"0.weight": {"9": "1f"}}', "{",
     '{"0.weight": {"0": "0x3f"}}', '{"0.weight": {"0": 63}}', '{"gone": {"0": "3f"}}'],
)  # fmt: skip
def test_a_file_whose_channels_do_not_fit_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "small.safetensors"
    al.save(compact(network(), {}), path)
    with safetensors.safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata())
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, path, metadata | {"kept_channels": text})
    with pytest.raises(FileError, match=r"kept channels|JSON"):
        al.load(path)
