"""The tri-state activation is zero, the activation, or the identity, as its gates say."""

import copy

import pytest
import torch
from torch import Tensor, nn

import archlearn as al
from archlearn.nn import tristate_activation
from archlearn.nn.tristate_activation import gate_channels

X = torch.tensor([[-2.0, -1.0, 3.0], [4.0, 0.0, -5.0]])


@torch.no_grad()
def set_(
    site: al.TriState, width: list[float] | None = None, depth: float | None = None
) -> al.TriState:
    if width is not None:
        assert site.width is not None
        site.width.copy_(torch.tensor(width))
    if depth is not None:
        assert site.depth is not None
        site.depth.fill_(depth)
    return site


def paper(x: Tensor, w: Tensor, d: float) -> Tensor:
    """Equation 2 of the paper: `wx` for `x ≥ 0`, and `wdx` below."""
    return torch.where(x >= 0, w * x, w * d * x)


@pytest.mark.parametrize("depth", [0.0, 1.0])
@pytest.mark.parametrize("width", [(0.0, 0.0, 0.0), (1.0, 1.0, 1.0), (0.0, 1.0, 0.0)])
def test_with_relu_it_is_the_equation_of_the_paper(width: tuple[float, ...], depth: float) -> None:
    site = set_(al.TriState(3), list(width), depth)
    torch.testing.assert_close(site(X), paper(X, torch.tensor(width), depth), rtol=0, atol=0)


def test_the_three_states_are_zero_activation_and_identity() -> None:
    site = set_(al.TriState(3), [0.2, 0.8, 0.8], depth=0.2)
    assert site(X).tolist() == [[0.0, 0.0, 3.0], [0.0, 0.0, 0.0]]
    set_(site, depth=0.8)
    assert site(X).tolist() == [[0.0, -1.0, 3.0], [0.0, 0.0, -5.0]]


@pytest.mark.parametrize(
    "activation", [nn.GELU(), nn.SiLU(), nn.Tanh(), nn.ELU(), nn.LeakyReLU(0.3), nn.PReLU()]
)
def test_any_activation_has_the_three_states(activation: nn.Module) -> None:
    site = set_(al.TriState(3, activation), [1.0, 0.0, 1.0], depth=0.0)
    shown = torch.tensor([1.0, 0.0, 1.0])
    torch.testing.assert_close(site(X), activation(X) * shown, rtol=0, atol=0)
    set_(site, depth=1.0)
    torch.testing.assert_close(site(X), X * shown, rtol=0, atol=0)


def test_it_starts_as_the_plain_activation() -> None:
    site = al.TriState(3)
    assert torch.equal(site(X), torch.relu(X))
    gated = al.add_gates(nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1)), X)
    for model, name in ((site, ""), (gated, "0")):
        assert al.width_gates(model)[name].tolist() == pytest.approx([0.55] * 3)
        assert al.depth_gates(model)[name].item() == pytest.approx(0.45)


@pytest.mark.parametrize("kind", ["width", "depth"])
def test_a_gate_is_learnt_fixed_or_absent(kind: str) -> None:
    learnt = getattr(al.TriState(3, **{kind: al.Gate.LEARNT}), kind)
    fixed = getattr(al.TriState(3, **{kind: al.Gate.FIXED}), kind)
    absent = al.TriState(3, **{kind: al.Gate.ABSENT})
    assert learnt.requires_grad
    assert not fixed.requires_grad
    assert isinstance(fixed, nn.Parameter)
    assert getattr(absent, kind) is None
    assert f"{kind}=absent" in repr(absent)
    assert f"{kind}=fixed" in repr(al.TriState(3, **{kind: al.Gate.FIXED}))
    assert torch.equal(absent(X), torch.relu(X))


def test_a_fixed_gate_still_acts() -> None:
    site = set_(
        al.TriState(3, width=al.Gate.FIXED, depth=al.Gate.FIXED), [0.0, 1.0, 1.0], depth=1.0
    )
    assert site(X).tolist() == [[0.0, -1.0, 3.0], [0.0, 0.0, -5.0]]
    assert list(site.parameters()) == [site.width, site.depth]


def test_gradients_of_both_gates_worked_by_hand() -> None:
    """∂/∂w is what the channel would give; ∂/∂d is `w·(x − act(x))`, summed over all."""
    site = set_(al.TriState(3), [0.2, 0.8, 0.8], depth=0.2)
    site(X).sum().backward()
    assert site.width is not None
    assert site.depth is not None
    assert site.width.grad is not None
    assert site.depth.grad is not None
    assert site.width.grad.tolist() == [4.0, 0.0, 3.0]
    assert site.depth.grad.item() == -1.0 - 5.0


def test_a_dropped_channel_still_feels_what_could_bring_it_back() -> None:
    site = set_(al.TriState(3), [0.0, 0.0, 0.0])
    site(X).sum().backward()
    assert site.width is not None
    assert site.width.grad is not None
    assert site.width.grad.tolist() == [4.0, 0.0, 3.0]


@pytest.mark.parametrize(("dim", "shape"), [(1, (2, 3, 4, 5)), (2, (2, 5, 3)), (0, (3, 2))])
def test_channels_lie_along_the_dimension_given(dim: int, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    site = set_(al.TriState(3, dim=dim, depth=al.Gate.ABSENT), [1.0, 0.0, 1.0])
    expected = torch.relu(x)
    expected.select(dim, 1).zero_()
    torch.testing.assert_close(site(x), expected, rtol=0, atol=0)


def test_channels_may_be_counted_from_the_end() -> None:
    x = torch.randn(2, 5, 3)
    site = set_(al.TriState(3, dim=-1, depth=al.Gate.ABSENT), [1.0, 0.0, 1.0])
    torch.testing.assert_close(site(x), torch.relu(x) * torch.tensor([1.0, 0.0, 1.0]))


@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        ((3, 5, 2, 2), 1),
        ((3, 5), 1),
        ((2, 3, 5), 2),
        ((5, 2, 3), 0),
        ((1, 4, 3, 3), 1),
        ((4, 1), 1),
        ((2, 3, 1), 2),
        ((3, 1, 2, 2), 1),
        ((3, 1, 6), 1),
    ],
)
def test_gradients_of_scaling_agree_with_autograd(shape: tuple[int, ...], dim: int) -> None:
    """Both gradients are written by hand; so are those of the second order, which follow."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True)
    width = torch.rand(shape[dim], dtype=torch.float64, generator=generator, requires_grad=True)

    def scale(x: Tensor, width: Tensor) -> Tensor:
        return gate_channels(x, width, dim)

    assert torch.autograd.gradcheck(scale, (x, width))
    assert torch.autograd.gradgradcheck(scale, (x, width))


@pytest.mark.parametrize("shape", [(300, 100, 3, 3), (300, 1000, 1), (100, 3000)])
def test_large_weights_are_scaled_as_small_ones_are(shape: tuple[int, ...]) -> None:
    """They take another way, which is quicker; values and both gradients are the same."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True)
    width = torch.rand(shape[1], dtype=torch.float64, generator=generator, requires_grad=True)
    upstream = torch.randn(shape, dtype=torch.float64, generator=generator)
    scaled = gate_channels(x, width, 1)
    for_x, for_width = torch.autograd.grad(scaled, (x, width), upstream)
    by_channel = width.view(-1, *[1] * (len(shape) - 2))
    torch.testing.assert_close(scaled, x * by_channel)
    torch.testing.assert_close(for_x, upstream * by_channel)
    torch.testing.assert_close(for_width, (upstream * x).transpose(0, 1).flatten(1).sum(1))


def test_images_laid_out_channels_last_stay_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, where gates get a number for each place: in another layout it reads far apart."""
    monkeypatch.setattr(tristate_activation, "_sums_by_place", lambda *_: True)
    x = torch.randn(2, 3, 5, 4).contiguous(memory_format=torch.channels_last)
    width = torch.tensor([1.0, 0.0, 1.0], requires_grad=True)
    scaled = gate_channels(x, width)
    assert scaled.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(scaled, x * width.view(3, 1, 1))
    scaled.sum().backward()
    assert width.grad is not None
    torch.testing.assert_close(width.grad, x.sum((0, 2, 3)))


def test_training_and_evaluation_use_the_same_binary_gates() -> None:
    site = set_(al.TriState(3), [0.3, 0.6, 0.9], depth=0.6)
    assert torch.equal(site.train()(X), site.eval()(X))


def test_an_activation_that_works_in_place_is_the_same() -> None:
    site = set_(al.TriState(3, nn.ReLU(inplace=True)), [1.0, 0.0, 1.0], depth=1.0)
    assert site(X.clone()).tolist() == (X * torch.tensor([1.0, 0.0, 1.0])).tolist()


def test_gates_are_in_the_state_and_follow_a_copy() -> None:
    site = set_(al.TriState(3), [0.3, 0.6, 0.9], depth=0.6)
    assert set(site.state_dict()) == {"width", "depth"}
    fresh = al.TriState(3)
    fresh.load_state_dict(site.state_dict())
    twin = copy.deepcopy(site)
    for other in (fresh, twin):
        assert torch.equal(other(X), site(X))
    set_(twin, [1.0, 1.0, 1.0])
    assert site.width is not None
    assert site.width[0].item() == pytest.approx(0.3)


def test_gates_move_with_the_module() -> None:
    site = al.TriState(3).double()
    assert site.width is not None
    assert site.width.dtype is torch.float64
    assert site(X.double()).dtype is torch.float64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_the_dtype_of_the_input_is_kept(dtype: torch.dtype) -> None:
    assert al.TriState(3)(X.to(dtype)).dtype is dtype


def test_a_wrong_number_of_channels_is_refused() -> None:
    message = r"has 4 channels along dimension 1, but its input has shape \(2, 3\)"
    with pytest.raises(al.InputError, match=message):
        al.TriState(4)(X)
    with pytest.raises(al.InputError, match=r"along dimension 2, but its input has shape"):
        al.TriState(3, dim=2)(X)


@pytest.mark.parametrize("n_channels", [0, -1])
def test_a_layer_without_channels_is_refused(n_channels: int) -> None:
    with pytest.raises(al.InputError, match=f"n_channels is {n_channels}; a layer has at least"):
        al.TriState(n_channels)


def test_gates_have_the_names_of_their_modules() -> None:
    net = nn.Sequential(
        nn.Linear(4, 3), al.TriState(3), nn.Linear(3, 2), al.TriState(2, depth=al.Gate.ABSENT)
    )
    assert list(al.width_gates(net)) == ["1", "3"]
    assert list(al.depth_gates(net)) == ["1"]
    assert al.width_gates(net)["1"] is net[1].width
