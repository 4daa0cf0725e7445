"""The source of a compact model runs by itself and computes exactly the same."""

from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import archlearn as al
from archlearn.export.python_source import write_source
from archlearn.models import build_network


@torch.no_grad()
def halve(net: nn.Module, x: Tensor) -> nn.Module:
    model = al.add_gates(net, x).eval()
    for gate in al.width_gates(model).values():
        gate[::2] = 0.0
    return al.compact(model).eval()


def run_source(model: nn.Module, folder: Path) -> tuple[str, Any]:
    text, tensors = write_source(model, "weights.safetensors")
    path = folder / "weights.safetensors"
    save_file({name: t.detach().contiguous() for name, t in tensors.items()}, path)
    names: dict[str, Any] = {}
    exec(compile(text, "source.py", "exec"), names)
    return text, names["load"](str(path))


LENET = '''"""LeNet with 109,295 parameters, compacted by archlearn."""

import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn


class LeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, 5)
        self.conv2 = nn.Conv2d(10, 25, 5)
        self.fc1 = nn.Linear(400, 250)
        self.fc2 = nn.Linear(250, 10)

    def forward(self, x: Tensor):
        x = self.conv1(x)
        x = F.max_pool2d(x, 2)
        x = F.relu(x)
        x = self.conv2(x)
        x = F.max_pool2d(x, 2)
        x = F.relu(x)
        x = x.flatten(1)
        x = self.fc1(x)
        x = F.relu(x)
        return self.fc2(x)


def load(path: str = "weights.safetensors") -> LeNet:
    """Return the network with its weights."""
    weights = load_file(path)
    model = LeNet()
    model.load_state_dict(weights)
    return model.eval()
'''


def test_a_compact_lenet_fits_on_a_screen(tmp_path: Path) -> None:
    small = halve(build_network("lenet", (1, 28, 28), 10), torch.randn(2, 1, 28, 28))
    text, loaded = run_source(small, tmp_path)
    assert text == LENET
    loaded.load_state_dict(small.state_dict())
    al.save(small, tmp_path / "small.safetensors")
    assert write_source(al.load(tmp_path / "small.safetensors"), "weights.safetensors")[0] == text


@pytest.mark.parametrize("name", ["lenet", "resnet20", "mobilenetv2", "vit", "gpt", "mixer"])
def test_built_in_networks_compute_exactly_the_same(name: str, tmp_path: Path) -> None:
    shape = {"lenet": (1, 28, 28), "gpt": (16,)}.get(name, (3, 32, 32))
    x = torch.randint(60, (2, *shape)) if name == "gpt" else torch.randn(2, *shape)
    net = build_network(name, shape, 65)
    small = halve(net, x)
    _, loaded = run_source(small, tmp_path)
    assert torch.equal(loaded(x), small(x))
    assert torch.equal(loaded(x[:1]), small(x[:1]))


class Tied(nn.Module):
    """Tied weights, a constant, a buffer, parameters of its own, other calls while training."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.scale = nn.Parameter(torch.rand(4), requires_grad=False)
        self.register_buffer("shift", torch.rand(4))
        self.offset = torch.rand(4)
        self.blocks = nn.ModuleDict({"a": nn.Sequential(nn.Linear(4, 4), nn.Tanh())})
        self.again = self.blocks["a"]

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(x).relu()) * self.scale + self.shift + self.offset
        y = torch.cat([x[:, :2] // 0.5, x[:, 2:].flip(1)], dim=1)
        y = F.dropout(y, 0.5, self.training)
        return self.again(self.blocks["a"](x)) + -y[:, [0, 1, 2, 3]].softmax(dim=-1)


class KeysAndValues(nn.Module):
    """Parts and tensors with the names of methods of nn.ModuleDict, and those of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.values = nn.Linear(4, 4), nn.Linear(4, 4)
        self.items = nn.Parameter(torch.rand(4))
        self.scales = nn.ParameterList([torch.rand(()), torch.rand(4)])

    def forward(self, x: Tensor) -> Tensor:
        return self.scales[1] * self.keys(x).relu() + self.scales[0] * self.values(x) + self.items


def branch_left_out() -> nn.Module:
    """Return a compact nn.Sequential that has a forward of its own."""
    block = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    model = al.add_gates(nn.Sequential(Residual(block), nn.Linear(4, 4)), torch.randn(2, 4))
    with torch.no_grad():
        al.branch_gates(model)["0.block"].fill_(0.0)
    return al.compact(model)


def named() -> nn.Sequential:
    """Return a chain whose parts have names, one of them two."""
    act = nn.Tanh()
    inner = nn.Sequential(OrderedDict({"act": act, "fc": nn.Linear(6, 4), "keys": act}))
    return nn.Sequential(OrderedDict({"7": nn.Linear(4, 6), "act": act, "inner": inner, "1": act}))


class Residual(nn.Module):
    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block, self.last = block, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x + self.block(x)).relu()


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "tied": lambda: Tied(),
    "double": lambda: nn.Sequential(nn.Linear(4, 6), nn.Hardtanh(-2, 2), nn.Linear(6, 3)).double(),
    "weight norm": lambda: nn.Sequential(weight_norm(nn.Linear(4, 6)), nn.Tanh()),
    "keys and values": lambda: nn.Sequential(KeysAndValues(), nn.Tanh()),
    "numbers as names": branch_left_out,
    "named chain": named,
    "named parts": lambda: Residual(named()),
    "nested": lambda: nn.Sequential(nn.Sequential(nn.Linear(4, 6), nn.PReLU()), nn.LayerNorm(6)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_rarer_parts_compute_exactly_the_same(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = NETWORKS[name]().eval()
    x = torch.randn(3, 4, dtype=next(net.parameters()).dtype)
    _, loaded = run_source(net, tmp_path)
    assert torch.equal(loaded(x), net(x))
    assert {n: p.dtype for n, p in loaded.named_parameters()} == {
        n: p.dtype for n, p in net.named_parameters()
    }


def test_calls_while_training_are_written_too(tmp_path: Path) -> None:
    net = Tied()
    _, loaded = run_source(net, tmp_path)
    x = torch.randn(3, 4)
    torch.manual_seed(1)
    expected = net.train()(x)
    torch.manual_seed(1)
    assert torch.equal(loaded.train()(x), expected)


def test_what_has_no_plain_source_is_refused(tmp_path: Path) -> None:
    x = torch.randn(2, 8, 6, 6)
    net = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU(), nn.LocalResponseNorm(3), nn.Conv2d(8, 2, 3))
    with pytest.raises(al.FileError, match=r"the layer '2' is of class .*NarrowedLocalResponse"):
        write_source(halve(net, x), "weights.safetensors")
    mixed = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).double())
    with pytest.raises(al.FileError, match="one precision"):
        write_source(mixed, "weights.safetensors")


class TiedAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.bias = nn.Linear(6, 8), nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.encoder(x)) @ self.encoder.weight + self.bias


def test_a_product_by_columns_is_a_linear_layer_with_a_transposed_weight(tmp_path: Path) -> None:
    model = halve(TiedAutoencoder(), torch.randn(2, 4, 6))
    text, loaded = run_source(model, tmp_path)
    assert "self.encoder.weight.t())" in text
    x = torch.randn(3, 5, 6)
    assert torch.equal(loaded(x), model(x))


class MaskByItems(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        mask = x.new_zeros(x.size(1))
        mask[:2] = 1.5
        return self.last(x * mask[:, None])


def test_items_that_are_set_are_statements(tmp_path: Path) -> None:
    model = halve(MaskByItems(), torch.randn(2, 4, 6))
    text, loaded = run_source(model, tmp_path)
    assert "[:2] = 1.5\n" in text
    x = torch.randn(3, 5, 6)
    assert torch.equal(loaded(x), model(x))


def test_an_output_of_transformers_becomes_a_dict(tmp_path: Path) -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")

    class Records(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Any:
            return outputs.BaseModelOutput(last_hidden_state=self.last(F.relu(self.first(x))))

    model = halve(Records(), torch.randn(2, 6))
    text, loaded = run_source(model, tmp_path)
    assert "return dict(last_hidden_state=" in text
    x = torch.randn(3, 6)
    assert torch.equal(loaded(x)["last_hidden_state"], model(x)[0])
