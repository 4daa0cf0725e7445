"""A gated model runs wherever the plain one runs: compiled, exported, in any precision."""

import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import archlearn as al
from archlearn.gating.insertion import place_gates

# torch's own warnings about torch's own code, while it compiles
theirs = pytest.mark.filterwarnings(
    "ignore:.*is deprecated:DeprecationWarning", "ignore:.*not be instantiated:DeprecationWarning"
)
HAS_COMPILER = any(shutil.which(name) for name in ("g++", "clang++"))


class Net(nn.Module):
    """A convolution, two linear layers, and dropout that follows the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6)
        self.hidden, self.last = nn.Linear(24, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.gelu(self.norm(self.conv(x))), 2).flatten(1)
        x = F.dropout(x, 0.0, training=self.training)
        return self.last(torch.relu(self.hidden(x)))


X = torch.randn(5, 1, 6, 6, generator=torch.Generator().manual_seed(0))


def make() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    net = Net()
    gated = al.add_gates(net, X)
    with torch.no_grad():
        al.width_gates(gated)["conv"][[0, 4]] = 0.2
        al.depth_gates(gated)["hidden"].fill_(0.7)
    return net, gated


def gradients(model: nn.Module, output: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    output.square().sum().backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def assert_compiled_is_eager(model: nn.Module, x: Tensor, **options: Any) -> None:
    expected = model(x)
    eager = gradients(model, expected)
    compiled = torch.compile(model, fullgraph=True, **options)
    found = compiled(x)
    torch.testing.assert_close(found, expected)
    graph = gradients(model, found)
    assert set(graph) == set(eager) == {name for name, _ in model.named_parameters()}
    torch.testing.assert_close(graph, eager)


@theirs
def test_the_compiled_model_is_the_same_forward_and_backward() -> None:
    assert_compiled_is_eager(make()[1], X, backend="aot_eager")


@pytest.mark.slow
@pytest.mark.skipif(not HAS_COMPILER, reason="torch.compile needs a C++ compiler")
@theirs
def test_the_model_compiled_to_machine_code_is_the_same() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    x = torch.randn(5, 3)
    model = al.add_gates(net, x)
    with torch.no_grad():
        al.width_gates(model)["0"][1] = 0.1
    assert_compiled_is_eager(model, x, options={"cpp_cache_precompile_headers": False})


@theirs
def test_the_compiled_model_follows_its_gates() -> None:
    """Gates that flip after compilation act at once: nothing was baked in."""
    _, model = make()
    compiled = torch.compile(model.eval(), fullgraph=True, backend="aot_eager")
    before = compiled(X)
    with torch.no_grad():
        al.width_gates(model)["conv"].copy_(1 - al.width_gates(model)["conv"])
    assert not torch.equal(compiled(X), before)
    torch.testing.assert_close(compiled(X), model(X))


def test_the_exported_model_is_the_same() -> None:
    _, model = make()
    exported = torch.export.export(model.eval(), (X,))
    torch.testing.assert_close(exported.module()(X), model(X))


def test_outputs_under_autocast_have_the_dtype_they_had() -> None:
    net, model = make()
    with torch.autocast("cpu", torch.bfloat16):
        plain, gated = net(X), model(X)
    assert gated.dtype is plain.dtype is torch.bfloat16
    assert gradients(model, gated.float())["archlearn_gates.width.conv"].dtype is torch.float32


def test_open_gates_change_nothing_under_autocast() -> None:
    torch.manual_seed(0)
    net = Net().eval()
    model = al.add_gates(net, X)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(model(X), net(X))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_model_of_another_precision_is_learnt_and_compacted(dtype: torch.dtype) -> None:
    model = make()[1].to(dtype).eval()
    x = X.to(dtype)
    small = al.compact(model)
    assert {p.dtype for p in small.parameters()} == {dtype}
    tolerance = 1e-10 if dtype is torch.float64 else 0.05
    torch.testing.assert_close(small(x), model(x), rtol=tolerance, atol=tolerance)


def test_function_transforms_work() -> None:
    """Gradients of each sample by `vmap` sum to the gradient of the batch."""
    model = make()[1].eval()
    state = {name: p.detach() for name, p in model.named_parameters()}

    def loss(state: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, state, (x[None],)).square().sum()

    each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(state, X)
    together = gradients(model, model(X))
    torch.testing.assert_close({name: g.sum(0) for name, g in each.items()}, together)


class ByHand(nn.Module):
    """The same network with gates placed by hand, which act on activations and nowhere else.

    The first stands behind the pooling: in front of it, a dropped channel would be zero
    everywhere, and the pooling would pick any of its places instead of the largest.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.gate_1 = al.TriState(6, nn.Identity(), depth=al.Gate.ABSENT)
        self.gate_2 = al.TriState(8)

    def forward(self, x: Tensor) -> Tensor:
        net: Any = self.net
        x = self.gate_1(F.max_pool2d(F.gelu(net.norm(net.conv(x))), 2)).flatten(1)
        return net.last(self.gate_2(net.hidden(x)))


def test_gradients_are_those_of_gates_on_the_activations() -> None:
    """Gates may act on the next weights instead; all gradients stay what they were."""
    net, model = make()
    reference, x = ByHand(net).double(), X.double()
    model = model.double()
    with torch.no_grad():
        for site, gate in (("gate_1", "conv"), ("gate_2", "hidden")):
            getattr(reference, site).width.copy_(al.width_gates(model)[gate])
        reference.gate_2.depth.copy_(al.depth_gates(model)["hidden"])
    ours, theirs = gradients(model, model(x)), gradients(reference, reference(x))
    for name, gradient in theirs.items():
        name = name.removeprefix("net.").replace("gate_1.width", "archlearn_gates.width.conv")
        name = name.replace("gate_2.width", "archlearn_gates.width.hidden")
        name = name.replace("gate_2.depth", "archlearn_gates.depth.hidden")
        torch.testing.assert_close(ours.pop(name), gradient, rtol=1e-10, atol=1e-10, msg=name)
    assert not ours


class Pair(nn.Module):
    """Two inputs, and an option that has a default."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.last = nn.Linear(3, 5), nn.Linear(2, 4), nn.Linear(9, 2)

    def forward(self, left: Tensor, right: Tensor, *, scale: float = 1.0) -> Tensor:
        joined = torch.cat([torch.relu(self.left(left)), torch.relu(self.right(right))], 1)
        return self.last(joined) * scale


A, B = torch.randn(4, 3), torch.randn(4, 2)


@pytest.mark.parametrize(
    "inputs",
    [
        (A, B),
        {"left": A, "right": B},
        {"right": B, "left": A},
    ],
)
def test_several_inputs_by_position_or_by_name(inputs: Any) -> None:
    net = Pair()
    model = al.add_gates(net, inputs)
    assert {n: len(g) for n, g in al.width_gates(model).items()} == {"left": 5, "right": 4}
    with torch.no_grad():
        al.width_gates(model)["left"][1] = al.width_gates(model)["right"][3] = 0.1
    small = al.compact(model)
    assert (small.left.out_features, small.last.in_features) == (4, 7)
    for each in (small, model):
        torch.testing.assert_close(each(A, B), each(left=A, right=B), rtol=0, atol=0)
    torch.testing.assert_close(small(A, B), model(A, B))
    torch.testing.assert_close(small(right=B, left=A), model(A, B))


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((A,), r"do not fit Pair.forward\(self, left.*missing a required argument: 'right'"),
        ((A, B, B), r"do not fit Pair.forward.*too many positional arguments"),
        ({"left": A, "wrong": B}, r"missing a required argument: 'right'|unexpected keyword"),
        ((B, A), r"does not run on the example inputs: at 'left': mat1 and mat2 shapes"),
        (None, r"example_inputs is a NoneType; give a tensor, a tuple"),
        ((A.double(), B.double()), r"at 'left': .*dtype"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs: Any, message: str) -> None:
    with pytest.raises(al.InputError, match=message):
        al.add_gates(Pair(), inputs)


def test_an_option_that_is_no_tensor_is_kept_and_another_value_refused() -> None:
    net = Pair()
    model = al.add_gates(net, {"left": A, "right": B, "scale": 2.0})
    torch.testing.assert_close(model(A, B, scale=2.0), net(A, B, scale=2.0))
    with pytest.raises(
        al.InputError, match=r"scale is 3.0, but the model was traced with 2.0; put"
    ):
        model(A, B, scale=3.0)


def test_an_option_left_out_keeps_its_default_and_another_value_is_refused() -> None:
    net = Pair()
    model = al.add_gates(net, (A, B))
    torch.testing.assert_close(model(A, B, scale=1.0), net(A, B))
    with pytest.raises(
        al.InputError, match=r"scale is 2.0, but the model was traced with 1.0; put"
    ):
        model(A, B, scale=2.0)


def test_gates_are_on_weights_that_are_fewer_than_the_activations_of_a_usual_batch() -> None:
    """Even if the example is small: the others were a seventh of a VGG's step on a GPU."""
    net = nn.Sequential(nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 256, 3))
    gated: Any = al.add_gates(net, torch.randn(1, 1, 8, 8))
    n_weights, n_activations = 32 * 256 * 9, 32 * 8 * 8
    assert 32 * n_activations < n_weights < 128 * n_activations
    assert list(place_gates(gated.archlearn_gates.learnable.channel_graph, gated, 0)) == [0]


PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "einsum": lambda x, y: torch.einsum("bic,bjc->bij", x, y),
    "matmul": lambda x, y: x @ y.transpose(1, 2),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_channels_that_a_product_sums_over_are_gated_in_front_of_it(name: str) -> None:
    """Each row is compared with each other by the same features that a layer reads."""

    class Compared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = (nn.Linear(*n) for n in ((6, 5), (6, 5), (5, 3)))

        def forward(self, x: Tensor) -> Tensor:
            keys, queries = F.relu(self.first(x)), F.relu(self.second(x))
            return PRODUCTS[name](queries, keys) @ self.head(keys)

    torch.manual_seed(0)
    x = torch.rand(2, 4, 6)
    model = al.add_gates(Compared(), x)
    with torch.no_grad():
        for gate in al.width_gates(model).values():
            gate[:3] = 0.2
    torch.testing.assert_close(al.compact(model)(x), model(x))
