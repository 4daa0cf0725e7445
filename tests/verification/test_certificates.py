"""A certificate says by how much two models differ, and on what they were compared."""

import copy
from collections import OrderedDict

import pytest
import torch
from torch import Tensor, nn

import archlearn as al
from archlearn.tracing.example_inputs import ExampleInputs
from archlearn.verification.certificate import Comparison

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))


def test_a_model_is_the_same_as_its_copy() -> None:
    first = net()
    found = al.certify(first, copy.deepcopy(first), X)
    assert (found.difference, found.difference_float64) == (0.0, 0.0)
    assert (found.dtype, found.n_inputs) == ("float32", 4)
    assert (found.tolerance, found.tolerance_float64) == (1e-3, 64 * 2**-23)
    assert str(found).startswith("same function on 4 inputs: largest relative difference 0.0e+00")


def test_other_arithmetic_for_the_same_function_is_accepted() -> None:
    """Two layers and the one layer they are: rounding differs, the function does not."""
    torch.manual_seed(0)
    pair = nn.Sequential(nn.Linear(4, 50), nn.Linear(50, 3))
    one = nn.Linear(4, 3).double()
    wide = copy.deepcopy(pair).double()
    with torch.no_grad():
        one.weight.copy_(wide[1].weight @ wide[0].weight)
        one.bias.copy_(wide[1].weight @ wide[0].bias + wide[1].bias)
    found = al.certify(wide, one, X.double())
    assert found.dtype == "float64"
    assert found.difference_float64 < 1e-13


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_a_compact_model_whose_merged_weights_were_rounded_is_the_same(dtype: torch.dtype) -> None:
    for seed in range(5):
        torch.manual_seed(seed)
        layers = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 3)).to(dtype)
        model = al.add_gates(layers, X.to(dtype))
        with torch.no_grad():
            al.depth_gates(model)["0"].fill_(0.9)
        small = al.compact(model)
        assert len(list(small.parameters())) == 2
        al.certify(model, small, X.to(dtype))


def test_different_models_are_refused_with_the_numbers() -> None:
    message = r"differ by \d\.\d\de[+-]\d\d in float64 \(allowed 8e-06\) and by .* in float32"
    with pytest.raises(al.CertificateError, match=message):
        al.certify(net(0), net(1), X)


@pytest.mark.parametrize(("change", "is_refused"), [(1e-5, True), (1e-12, False)])
def test_the_smallest_difference_that_is_not_rounding_is_seen(
    change: float, is_refused: bool
) -> None:
    first = net().double()
    second = copy.deepcopy(first)
    with torch.no_grad():
        second[3].bias[0] += change
    if is_refused:
        with pytest.raises(al.CertificateError, match="do not compute the same function"):
            al.certify(first, second, X.double())
    else:
        assert 0 < al.certify(first, second, X.double()).difference_float64 < 1e-11


def test_a_difference_within_float32_rounding_is_still_no_rounding_in_float64() -> None:
    first = net()
    second = copy.deepcopy(first)
    with torch.no_grad():
        second[3].bias[0] += 1e-4
    with pytest.raises(al.CertificateError, match=r"and by \d\.\d\de-0[4-9] in float32"):
        al.certify(first, second, X)


class Fixed(nn.Module):
    """A model whose outputs are given."""

    def __init__(self, *outputs: Tensor) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.outputs = outputs

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.outputs


def test_the_difference_is_relative_to_the_outputs() -> None:
    first = Fixed(torch.tensor([1000.0, 2000.0], dtype=torch.float64)).double()
    second = Fixed(torch.tensor([1000.0, 2000.0 + 2e-6], dtype=torch.float64)).double()
    found = al.certify(first, second, X)
    assert found.difference_float64 == pytest.approx(1e-9, rel=1e-4)


def test_outputs_of_other_shapes_are_refused() -> None:
    with pytest.raises(al.CertificateError, match=r"outputs of shape \(6, 3\) and \(6, 2\)"):
        al.certify(net(), nn.Linear(4, 2), X)


@pytest.mark.parametrize("which", ["first", "second"])
def test_a_model_that_does_not_run_is_named(which: str) -> None:
    pair = (nn.Linear(5, 3), net()) if which == "first" else (net(), nn.Linear(5, 3))
    message = f"the {which} model, Linear, does not run on the example inputs: mat1 and mat2"
    with pytest.raises(al.InputError, match=message):
        al.certify(*pair, X)


def test_another_number_of_outputs_is_refused() -> None:
    one = torch.ones(2)
    with pytest.raises(al.CertificateError, match="one model returns 1 tensors, the other 2"):
        al.certify(Fixed(one), Fixed(one, one), X)


def test_an_output_that_is_not_a_number_is_seen() -> None:
    good, bad = torch.ones(2), torch.tensor([1.0, float("nan")])
    with pytest.raises(al.CertificateError, match="differ by"):
        al.certify(Fixed(good), Fixed(bad), X)


def test_both_may_be_infinite_in_the_same_places() -> None:
    odd = torch.tensor([1.0, float("inf"), float("nan")])
    assert al.certify(Fixed(odd), Fixed(odd.clone()), X).difference == 0.0


def test_whole_numbers_must_be_equal() -> None:
    first, second = torch.tensor([1, 2]), torch.tensor([1, 3])
    with pytest.raises(al.CertificateError, match="differ by inf"):
        al.certify(Fixed(first), Fixed(second), X)


def test_models_are_left_alone() -> None:
    first, second = net().train(), net().eval()
    before = copy.deepcopy(first.state_dict())
    al.certify(first, second, X)
    assert first.training
    assert not second.training
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, before[name]), name
        assert tensor.dtype is before[name].dtype


def test_the_random_state_is_left_alone() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    al.certify(net_without_seed(), net_without_seed(), X)
    assert torch.equal(torch.rand(1), expected)


def net_without_seed() -> nn.Module:
    with torch.random.fork_rng():
        return net()


def test_a_certificate_goes_through_plain_data() -> None:
    made = al.certify(net(), net(), X)
    assert al.Certificate.from_dict(made.to_dict()) == made


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        (torch.float64, 1e-8),
        (torch.float32, 1e-3),
        (torch.float16, 5e-2),
        (torch.bfloat16, 1e-1),
    ],
)
def test_every_precision_has_its_tolerance(dtype: torch.dtype, tolerance: float) -> None:
    model = nn.Linear(4, 3).to(dtype)
    found = al.certify(model, copy.deepcopy(model), X.to(dtype))
    assert found.tolerance == tolerance
    assert f"torch.{found.dtype}" == str(dtype)


def test_models_without_parameters_are_refused() -> None:
    with pytest.raises(al.InputError, match="ReLU has no parameters; there is nothing to compare"):
        al.certify(nn.ReLU(), nn.ReLU(), X)


class Decides(nn.Module):
    """Returns numbers, and decisions that rounding may turn."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = self.last(torch.relu(self.first(x)))
        return x, x.argmax(1)


class DecidesOtherwise(Decides):
    """Returns the same numbers, and other decisions."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x, _ = super().forward(x)
        return x, x.argmin(1)


def test_decisions_that_rounding_turns_are_those_of_double_precision() -> None:
    x = torch.randn(256, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    turned = 0
    for seed in range(8):
        torch.manual_seed(seed)
        model = al.add_gates(Decides().bfloat16(), x).eval()
        with torch.no_grad():
            al.depth_gates(model)["first"].fill_(0.9)
        small = al.compact(model)
        turned += int((small(x)[1] != model(x)[1]).sum())
    assert turned > 0


def test_other_decisions_are_noticed() -> None:
    torch.manual_seed(0)
    one = Decides()
    other = DecidesOtherwise()
    other.load_state_dict(one.state_dict())
    with pytest.raises(al.CertificateError, match="differ by inf in float64"):
        al.certify(one, other, torch.randn(64, 8))


class Masked(nn.Module):
    """Scores of which some are hidden, as those of a pointer network."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tensor([True, False, False, False], device=x.device)
        return self.layer(x).masked_fill(hidden, -1e30)


class Coarse(nn.Module):
    """In float32 numbers from 0 to 1 become multiples of 2**-7, or 2**-8 for negative offsets."""

    def __init__(self, offset: float, off_by: float = 0.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.offset, self.off_by = offset, off_by

    def forward(self, x: Tensor) -> Tensor:
        y = (x * self.scale + self.offset) - self.offset
        return y + self.off_by if y.dtype is torch.float32 else y


# Of 0.5 + 2**-8 - 2**-10, the one makes 0.5 and the other 0.5 + 2**-8: the first is off by 0.0029.
HALFWAY = torch.tensor([[1.0], [0.5 + 2**-8 - 2**-10]])


def test_a_model_may_differ_by_what_its_precision_does_to_the_other() -> None:
    first, second = Coarse(2.0**16), Coarse(-(2.0**16))
    found = al.certify(first, second, HALFWAY)
    assert found.difference_float64 < 1e-10
    assert 1e-3 < found.difference <= found.tolerance <= 2 * 2**-8
    with pytest.raises(al.CertificateError, match=r"in float32 \(allowed 1e-03\)"):
        al.certify(first, second, HALFWAY, tolerance=1e-3)


def test_a_model_that_is_off_by_more_than_its_precision_is_refused() -> None:
    """In float64 these agree."""
    first, second = Coarse(2.0**16), Coarse(-(2.0**16), off_by=0.02)
    with pytest.raises(al.CertificateError, match="do not compute the same function"):
        al.certify(first, second, HALFWAY)
    with pytest.raises(
        al.CertificateError, match=r"differ by \d\.\d\de.0\d in float64 \(allowed 8e-06\)"
    ):
        al.certify(first, nn.Sequential(nn.Linear(1, 1), second), HALFWAY)


def test_numbers_of_a_mask_hide_no_difference() -> None:
    torch.manual_seed(0)
    with pytest.raises(al.CertificateError, match="differ by"):
        al.certify(Masked(), Masked(), torch.randn(2, 3))


class Rounded(nn.Module):
    """Returns what it is given, and beside it what is left of a sum that should be zero."""

    def __init__(self, rest: float) -> None:
        super().__init__()
        self.rest = nn.Parameter(torch.tensor(rest, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.rest.expand(len(x), 1)], 1)


def test_rounding_near_zero_is_measured_by_numbers_that_are_the_same() -> None:
    x = torch.randn(2, 3, dtype=torch.float64)
    assert al.certify(Rounded(1e-17), Rounded(3e-17), x).difference_float64 < 1e-15


class OfTwoRows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + (x.shape[0] != 2)


def test_models_that_differ_at_other_batch_sizes_are_refused() -> None:
    second = OfTwoRows()
    first = nn.Sequential(OrderedDict(layer=second.layer))
    with pytest.raises(al.CertificateError, match="differ by"):
        al.certify(first, second, torch.randn(2, 3))


class OnlyTwoRows(OfTwoRows):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.view(2, 3))


def test_a_model_that_was_made_for_one_batch_size_is_refused() -> None:
    second = OnlyTwoRows()
    first = nn.Sequential(OrderedDict(layer=copy.deepcopy(second.layer)))
    x = torch.randn(2, 3)
    certificate = al.certify(first, second, x)  # which says what it was compared on
    assert certificate.n_inputs == 4
    comparison = Comparison((first, second), {}, ExampleInputs.of(x), is_derived=True)
    with pytest.raises(al.CertificateError, match="does not run on another number of rows"):
        comparison.certify()


class Bags(nn.Module):
    """Takes offsets, which must start with 0 and rise."""

    def __init__(self) -> None:
        super().__init__()
        self.bag, self.first, self.last = nn.EmbeddingBag(20, 6), nn.Linear(6, 8), nn.Linear(8, 2)

    def forward(self, tokens: Tensor, offsets: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(self.bag(tokens, offsets))))


def test_random_numbers_that_are_no_inputs_are_left_out() -> None:
    torch.manual_seed(0)
    gated = al.add_gates(Bags(), (torch.randint(20, (9,)), torch.tensor([0, 3, 5])))
    assert 1 <= al.compact(gated).certificate.n_inputs < 4


class AlwaysDrops(nn.Module):
    """Drops out in evaluation, too, to measure how sure it is."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(nn.functional.dropout(torch.relu(self.first(x)), 0.5, training=True))


def test_random_numbers_in_evaluation_mode_are_said_to_be_the_reason() -> None:
    torch.manual_seed(0)
    gated = al.add_gates(AlwaysDrops(), torch.randn(6, 4))
    with torch.no_grad():
        al.width_gates(gated)["first"][:4] = 0.0
    with pytest.raises(al.CertificateError, match="no random numbers in evaluation mode"):
        al.compact(gated)
    assert al.compact(gated, certified=False).last.in_features == 4


def test_a_certificate_that_can_see_nothing_says_so(caplog: pytest.LogCaptureFixture) -> None:
    net, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(2, 4)
    al.compact(al.add_gates(net, x))
    assert not caplog.messages
    nn.init.zeros_(net[2].weight)
    al.compact(al.add_gates(net, x))
    assert "returns the same for all inputs" in caplog.text


class _AddsMessages(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        counts = torch.zeros(x.size(0)).index_add(0, torch.arange(x.size(0)), x.sum(1))
        return self.last(x) + counts.unsqueeze(1)


def test_tensors_of_the_default_precision_are_made_in_double() -> None:
    """`index_add`, unlike a sum, takes no two precisions."""
    model = al.add_gates(_AddsMessages(), X)
    with torch.no_grad():
        al.width_gates(model)["first"][[1, 3]] = 0.0
    assert al.compact(model).certificate.difference_float64 < 1e-12


@pytest.mark.parametrize("name", ["3.weight", "1.running_mean"])
def test_a_network_that_holds_nan_is_refused_by_name(name: str) -> None:
    gated = al.add_gates(net(), X)
    gated.state_dict()[name].view(-1)[2] = torch.nan
    with pytest.raises(al.CertificateError, match=f"'{name}' holds NaN"):
        al.compact(gated)
