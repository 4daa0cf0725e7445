"""What is loaded computes what was saved, under the same names, without the user's code."""

import copy
import os
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import archlearn as al
from tests.serialization.networks import (
    IMAGES,
    NETWORKS,
    DictInput,
    Dropping,
    ManyOutputs,
    Optional,
    Outputs,
    Residual,
    Tied,
)


@pytest.fixture(params=NETWORKS)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[nn.Module, nn.Module, Tensor]:
    """A network, the same after saving and loading, and an input."""
    torch.manual_seed(5)
    make, shape = NETWORKS[request.param]
    net = make().double()
    al.save(net, tmp_path / "net.safetensors")
    return net, al.load(tmp_path / "net.safetensors"), torch.randn(shape).double()


def assert_same_call(first: nn.Module, second: nn.Module, x: Any) -> None:
    torch.manual_seed(9)
    expected = first(x)
    torch.manual_seed(9)
    found = second(x)
    if isinstance(expected, Outputs):
        expected, found = expected._asdict(), found._asdict()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_a_loaded_model_computes_the_same_in_both_modes(
    pair: tuple[nn.Module, nn.Module, Tensor],
) -> None:
    net, loaded, x = pair
    for training in (True, False):
        assert_same_call(net.train(training), loaded.train(training), x)


def test_names_flags_and_classes_survive(pair: tuple[nn.Module, nn.Module, Tensor]) -> None:
    net, loaded, _ = pair
    assert list(loaded.state_dict()) == list(net.state_dict())
    described = [(n, p.dtype, p.requires_grad) for n, p in net.named_parameters()]
    assert [(n, p.dtype, p.requires_grad) for n, p in loaded.named_parameters()] == described
    assert type(loaded).__name__ == type(net).__name__
    assert [m.training for m in loaded.modules()] == [m.training for m in net.modules()]


def test_a_loaded_model_copies_saves_again_and_takes_gradients(
    pair: tuple[nn.Module, nn.Module, Tensor], tmp_path: Path
) -> None:
    net, loaded, x = pair
    assert_same_call(net, copy.deepcopy(loaded), x)
    al.save(loaded, tmp_path / "again.safetensors")
    assert_same_call(net, al.load(tmp_path / "again.safetensors"), x)
    for model in (net, loaded):
        torch.manual_seed(2)
        leaves = torch.utils._pytree.tree_leaves(model(x))
        loss = sum(leaf.square().sum() for leaf in leaves if leaf.requires_grad)
        loss.backward()
    for expected, found in zip(net.parameters(), loaded.parameters(), strict=True):
        torch.testing.assert_close(found.grad, expected.grad, rtol=0, atol=0)


def test_a_copy_shares_nothing_with_the_loaded_model(tmp_path: Path) -> None:
    al.save(nn.Sequential(nn.Linear(2, 2)), tmp_path / "net.safetensors")
    loaded = al.load(tmp_path / "net.safetensors")
    before = loaded(torch.ones(1, 2))
    with torch.no_grad():
        next(copy.deepcopy(loaded).parameters()).zero_()
    torch.testing.assert_close(loaded(torch.ones(1, 2)), before)


def test_dict_inputs_work(tmp_path: Path) -> None:
    net = DictInput().double()
    al.save(net, tmp_path / "net.safetensors")
    inputs = {"a": torch.randn(2, 6).double(), "b": torch.randn(2, 6).double()}
    assert_same_call(net, al.load(tmp_path / "net.safetensors"), inputs)


def test_arguments_with_a_default_keep_it_unless_they_are_given(tmp_path: Path) -> None:
    net, x, scale = ManyOutputs(), torch.randn(2, 6), torch.tensor(3.0)
    al.save(net, tmp_path / "net.safetensors")
    loaded = al.load(tmp_path / "net.safetensors")
    torch.testing.assert_close(loaded(x).extra, net(x, 2.0).extra)
    with pytest.raises(al.InputError, match=r"scale is tensor.*traced with 2.0"):
        loaded(x, scale=scale)
    al.save(net, tmp_path / "net.safetensors", {"x": x, "scale": scale})
    loaded = al.load(tmp_path / "net.safetensors")
    torch.testing.assert_close(loaded(x, scale=scale).extra, net(x, 3.0).extra)


def test_an_optional_input_may_be_left_out(tmp_path: Path) -> None:
    net, x = Optional(), torch.randn(2, 6)
    al.save(net, tmp_path / "net.safetensors")
    torch.testing.assert_close(al.load(tmp_path / "net.safetensors")(x), net(x))
    al.save(net, tmp_path / "net.safetensors", (x, x))
    torch.testing.assert_close(al.load(tmp_path / "net.safetensors")(x, x), net(x, x))


def test_tied_parameters_stay_tied(tmp_path: Path) -> None:
    al.save(Tied(), tmp_path / "net.safetensors")
    loaded = al.load(tmp_path / "net.safetensors")
    assert loaded.encode.weight is loaded.decode.weight
    assert loaded.block is loaded.again


def test_frozen_parameters_and_modes_are_kept(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).half()
    net[0].weight.requires_grad_(False)
    net[1].eval()
    al.save(net, tmp_path / "net.safetensors")
    loaded = al.load(tmp_path / "net.safetensors")
    assert [p.requires_grad for p in loaded.parameters()] == [False, True, True, True]
    assert [m.training for m in loaded.modules()] == [True, True, False]
    assert {p.dtype for p in loaded.parameters()} == {torch.float16}


def test_parameters_keep_their_order_for_the_optimizer(tmp_path: Path) -> None:
    net = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 3)))
    nn.utils.parametrize.remove_parametrizations(net[0], "weight")
    assert list(net.state_dict()) == ["0.bias", "0.weight"]
    al.save(net, tmp_path / "net.safetensors")
    assert list(al.load(tmp_path / "net.safetensors").state_dict()) == ["0.bias", "0.weight"]


def test_a_sequential_of_layers_comes_back_as_one(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), nn.Linear(3, 1))
    al.save(net, tmp_path / "net.safetensors")
    loaded, x = al.load(tmp_path / "net.safetensors"), torch.randn(4, 2)
    assert type(loaded) is nn.Sequential
    torch.testing.assert_close(loaded[:1](x), net[:1](x), rtol=0, atol=0)


def test_a_sequential_of_the_users_modules_runs_by_its_graph(tmp_path: Path) -> None:
    net, x = nn.Sequential(Residual(), nn.Flatten()), torch.randn(IMAGES)
    al.save(net, tmp_path / "net.safetensors")
    assert_same_call(net.eval(), al.load(tmp_path / "net.safetensors").eval(), x)


def test_a_loaded_model_compiles(tmp_path: Path) -> None:
    net = Dropping().double()
    al.save(net, tmp_path / "net.safetensors")
    loaded = al.load(tmp_path / "net.safetensors")
    x = torch.randn(2, 6).double()
    compiled = torch.compile(loaded.eval(), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), net.eval()(x))
    al.save(compiled, tmp_path / "again.safetensors")
    assert list(al.load(tmp_path / "again.safetensors").state_dict()) == list(net.state_dict())


def test_loading_needs_none_of_the_users_code(tmp_path: Path) -> None:
    torch.manual_seed(3)
    net, x = Residual().eval(), torch.ones(IMAGES)
    al.save(net, tmp_path / "net.safetensors")
    code = (
        "import sys, torch, archlearn as al\n"
        "model = al.load(sys.argv[1])\n"
        f"print(model(torch.ones({IMAGES})).double().sum().item())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "net.safetensors")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(done.stdout) == pytest.approx(net(x).double().sum().item(), rel=1e-6)


def test_importing_the_package_does_not_import_torch() -> None:
    code = "import sys, archlearn; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_the_file_is_as_open_as_any_other(umask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        al.save(nn.Sequential(nn.Linear(2, 2)), tmp_path / "net.safetensors")
    finally:
        os.umask(before)
    assert (tmp_path / "net.safetensors").stat().st_mode & 0o777 == mode
    assert [path.name for path in tmp_path.iterdir()] == ["net.safetensors"]


class Asks(nn.Module):
    """Asks for the rank of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 1:
            x = x.unsqueeze(0)
        return torch.relu(self.layer(x))


def test_a_question_about_shapes_needs_the_example(tmp_path: Path) -> None:
    with pytest.raises(al.TracingError, match=r"if x.dim\(\) == 1.*give example_inputs"):
        al.save(Asks(), tmp_path / "net.safetensors")


def test_the_answers_of_the_example_are_kept_in_the_file(tmp_path: Path) -> None:
    net, x = Asks(), torch.randn(5, 4)
    al.save(net, tmp_path / "net.safetensors", x)
    loaded = al.load(tmp_path / "net.safetensors")
    assert torch.equal(loaded(x), net(x))
    with pytest.raises(al.InputError, match=r"what forward asks at .* is True, but"):
        loaded(x[0])


class Judges(nn.Module):
    """Returns its loss, as models of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        x = self.last(F.gelu(self.first(x)))
        return {"loss": F.cross_entropy(x, labels), "logits": x}


def test_a_model_that_returns_its_loss_is_saved(tmp_path: Path) -> None:
    x, labels = torch.randn(5, 6), torch.randint(4, (5,))
    small = al.compact(al.add_gates(Judges(), (x, labels)))
    al.save(small, tmp_path / "judge.safetensors")
    found = al.load(tmp_path / "judge.safetensors")(x, labels)
    torch.testing.assert_close(found, small(x, labels))


class _Turning(nn.Module):
    """Turns pairs of channels as complex numbers, as Llama's own code does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 4)
        self.register_buffer("angles", torch.polar(torch.ones(2), torch.arange(2.0)))
        self.angles: Tensor

    def forward(self, x: Tensor) -> Tensor:
        pairs = self.last(torch.relu(self.first(x))).reshape(-1, 2, 2)
        turned = torch.view_as_real(torch.view_as_complex(pairs) * self.angles)
        return turned.flatten(1) * x.square().add(1).reciprocal()


def test_complex_views_and_reciprocals_stand_in_a_file(tmp_path: Path) -> None:
    x = torch.randn(3, 4)
    model = al.add_gates(_Turning(), x)
    al.width_gates(model)["first"].data[:3] = 0
    small = al.compact(model)
    al.save(small, tmp_path / "small.safetensors")
    assert torch.equal(al.load(tmp_path / "small.safetensors")(x), small(x))


def _chain(act: nn.Module, *, named: bool) -> nn.Sequential:
    """Return layers with one activation between all of them."""
    parts = {"0": nn.Linear(4, 6), "1": act, "2": nn.Linear(6, 5), "3": act, "4": nn.Linear(5, 4)}
    return nn.Sequential(OrderedDict({f"p{n}" if named else n: p for n, p in parts.items()}))


@pytest.mark.parametrize("named", [False, True])
def test_one_activation_at_several_places_of_a_chain_stays_in_order(
    named: bool, tmp_path: Path
) -> None:
    act, x = nn.Tanh(), torch.randn(3, 4)
    inner = _chain(act, named=named)
    for net in (inner, nn.Sequential(nn.Linear(4, 4), act, inner, act)):
        al.save(net, tmp_path / "net.safetensors")
        assert torch.equal(al.load(tmp_path / "net.safetensors")(x), net(x))


def test_a_leaf_keeps_the_order_of_its_parts_or_is_refused(tmp_path: Path) -> None:
    x, path = torch.randn(3, 4), tmp_path / "net.safetensors"
    for named in (False, True):
        inner = _chain(nn.Tanh(), named=named)
        net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4), inner)
        model = al.add_gates(net, x, leaves=["3"])
        if named:
            with pytest.raises(al.FileError, match=r"'3.p3' .* use a module of its own there"):
                al.save(al.compact(model), path)
        else:
            al.save(al.compact(model), path)
            torch.testing.assert_close(al.load(path)(x), net(x))


class _ScaledBySize(nn.Module):
    """Makes a tensor of a size, as DeBERTa does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.sqrt(torch.tensor(x.size(0), dtype=torch.float))
        return self.last(torch.relu(self.first(x))) / scale


def test_a_tensor_made_of_a_size_stands_in_a_file(tmp_path: Path) -> None:
    net = _ScaledBySize()
    al.save(net, tmp_path / "net.safetensors", torch.randn(3, 4))
    x = torch.randn(5, 4)
    assert torch.equal(al.load(tmp_path / "net.safetensors")(x), net(x))


class MixesByFourier(nn.Module):
    """Tokens are mixed by a Fourier transform (FNet), and sorted by their length."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x + torch.fft.fft2(x).real + torch.fft.irfft(torch.fft.rfft(x, dim=1), n=5, dim=1)
        order = x.square().sum((0, 2)).argsort()
        return self.last(F.relu(self.first(x)))[:, order]


def test_fourier_transforms_and_orders_stand_in_a_file(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 5, 4)
    small = al.compact(al.add_gates(MixesByFourier(), x))
    al.save(small, tmp_path / "small.safetensors")
    loaded = al.load(tmp_path / "small.safetensors")
    assert torch.equal(loaded(2 * x), small(2 * x))
