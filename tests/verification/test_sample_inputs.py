"""Two models are compared on the example inputs and on random ones, at little cost."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import archlearn as al
from archlearn.tracing.symbolic_trace import ExampleInputs
from archlearn.verification.certificate import SampleInput, joined_sample, plain_samples
from archlearn.verification.precision import exchanging, to_float64


def shapes(trials: list[SampleInput]) -> list[tuple[int, ...]]:
    return [tuple(trial.inputs.args[0].shape) for trial in trials]


def joined(inputs: ExampleInputs, most_rows: int | None = None) -> SampleInput:
    sample = joined_sample(inputs, most_rows)
    assert sample is not None
    return sample


def test_random_images_go_into_a_batch_with_the_example() -> None:
    inputs = ExampleInputs.of(torch.randn(2, 3, 32, 32))
    trial = joined(inputs)
    assert trial.inputs.args[0].shape == (5, 3, 32, 32)
    assert torch.equal(trial.inputs.args[0][:2], inputs.args[0])
    assert trial.n_inputs == 4


@pytest.mark.parametrize(("size", "expected"), [(224, 9), (32, 11)])
def test_of_a_large_batch_the_first_rows_are_enough(size: int, expected: int) -> None:
    inputs = ExampleInputs.of(torch.randn(64, 3, size, size))
    trial = joined(inputs, most_rows=8)
    assert len(trial.inputs.args[0]) == trial.n_rows == expected
    assert torch.equal(trial.inputs.args[0][:8], inputs.args[0][:8])


@pytest.mark.parametrize("n_rows", [1, 8])
def test_a_small_batch_is_whole(n_rows: int) -> None:
    inputs = ExampleInputs.of(torch.randn(n_rows, 3, 32, 32))
    trial = joined(inputs, most_rows=8)
    assert trial.n_rows is None
    assert torch.equal(trial.inputs.args[0][:n_rows], inputs.args[0])


class Rows(TorchFunctionMode):
    """Sees how many rows linear layers read in double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is F.linear and args[0].dtype is torch.float64:
            self.seen.add(len(args[0]))
        return func(*args, **(kwargs or {}))


class Mlp(nn.Module):
    """Returns a result for each row, or one for all, or results that hang on rows far down."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way, self.first, self.last = way, nn.Linear(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.last(torch.relu(self.first(x)))
        if self.way == "all":
            return y.mean(0)
        return y - y[16:].mean(0) if self.way == "far down" else y


def rows_of_compact(way: str, n_rows: int) -> set[int]:
    torch.manual_seed(0)
    gated = al.add_gates(Mlp(way), torch.randn(n_rows, 5))
    with Rows() as rows:
        assert al.compact(gated).certificate.difference_float64 <= 1e-8
    return rows.seen


def test_a_certificate_leaves_rows_of_a_large_batch_out() -> None:
    assert rows_of_compact("each", 64) == {11}
    assert rows_of_compact("each", 8) == {11}


@pytest.mark.parametrize("way", ["all", "far down"])
def test_no_row_is_left_out_where_results_need_them_all(way: str) -> None:
    assert 64 in rows_of_compact(way, 64)


def test_whoever_asks_for_a_certificate_means_every_row() -> None:
    model = Mlp("each").eval()
    with Rows() as rows:
        al.certify(model, copy.deepcopy(model), torch.randn(64, 5))
    assert max(rows.seen) > 64


def test_inputs_without_a_common_batch_are_run_one_by_one() -> None:
    inputs = ExampleInputs.of((torch.randn(2, 3), torch.randn(5, 3)))
    assert joined_sample(inputs) is None
    assert shapes(plain_samples(inputs)) == [(2, 3)] * 4


def test_whole_numbers_stay_in_the_range_of_the_example_and_booleans_as_they_are() -> None:
    tokens, mask = torch.tensor([[3, 9], [4, 4]]), torch.tensor([[True, False], [False, False]])
    trial = joined(ExampleInputs.of((tokens, mask)))
    drawn, masks = trial.inputs.args
    assert drawn.shape == (5, 2)
    assert drawn.min() >= 3
    assert drawn.max() <= 9
    assert torch.equal(masks[2:], mask[[0, 1, 0]])


def test_random_inputs_differ_from_each_other() -> None:
    drawn = [trial.inputs.args[0] for trial in plain_samples(ExampleInputs.of(torch.zeros(1, 4)))]
    assert len({tuple(each.flatten().tolist()) for each in drawn}) == 4


class Images(nn.Module):
    """Reads an image with large strides, so that few places meet the last kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 4, 7, stride=8, padding=3)
        self.last = nn.Conv2d(4, 3, 3, stride=4, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.first(x))).mean((2, 3))


def test_a_corner_of_the_last_kernel_is_met_by_random_images() -> None:
    torch.manual_seed(0)
    first = Images().eval()
    second = copy.deepcopy(first)
    with torch.no_grad():
        second.last.weight[0, 0, 0, 0] += 1e-4
    with pytest.raises(al.CertificateError, match="differ by"):
        al.certify(first, second, torch.zeros(1, 1, 224, 224))


def test_a_difference_at_other_sizes_only_does_not_count() -> None:
    """The second model adds one to images that are not of the example's size."""

    class Other(Images):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + (x.shape[-1] != 224)

    torch.manual_seed(0)
    first = Images().eval()
    second = Other().eval()
    second.load_state_dict(first.state_dict())
    assert al.certify(first, second, torch.randn(1, 1, 224, 224)).difference == 0.0


def test_a_model_gets_its_own_numbers_back() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    before = {name: (tensor, tensor.data_ptr()) for name, tensor in model.state_dict().items()}
    held, x = model[0].weight, torch.randn(3, 2)
    with exchanging(to_float64(model)):
        assert held.dtype is model[1].running_mean.dtype is torch.float64
    with pytest.raises(RuntimeError, match="dtype"), exchanging(to_float64(model)):
        model(x)
    assert held is model[0].weight
    for name, tensor in model.state_dict().items():
        assert tensor.data_ptr() == before[name][1]
        assert tensor.dtype is before[name][0].dtype
