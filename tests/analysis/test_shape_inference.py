"""Shapes that are worked out without running a layer are those that it gives."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import archlearn as al
from archlearn.analysis.shape_inference import infer_output, infer_pool

KNOWN = [
    (nn.Linear(4, 7), (2, 4)),
    (nn.Linear(4, 7), (2, 3, 4)),
    (nn.Conv1d(4, 6, 3), (2, 4, 9)),
    (nn.Conv2d(4, 6, 3, stride=2, padding=1), (2, 4, 9, 8)),
    (nn.Conv2d(4, 6, (1, 3), dilation=(1, 2), groups=2), (4, 9, 8)),
    (nn.Conv3d(4, 6, 2, padding=(0, 1, 0)), (1, 4, 5, 5, 5)),
    (nn.BatchNorm1d(4), (3, 4)),
    (nn.BatchNorm2d(4), (3, 4, 2, 2)),
    (nn.Hardswish(), (3, 4)),
]
UNKNOWN = [
    (nn.Linear(4, 7), (2, 5)),
    (nn.Conv2d(4, 6, 3), (2, 4, 2, 2)),
    (nn.Conv2d(4, 6, 3), (2, 5, 9, 9)),
    (nn.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), (2, 4, 9, 9)),
    (nn.BatchNorm2d(4), (3, 4)),
    (nn.BatchNorm1d(4, track_running_stats=False), (3, 4)),
    (nn.Conv2d(4, 6, 3).double(), (2, 4, 9, 9)),
    (nn.GLU(), (2, 4)),
]


def guess(module: nn.Module, x: Tensor) -> Tensor | None:
    net = nn.Sequential(module).eval()
    graph = fx.Tracer().trace(net)
    node = next(n for n in graph.nodes if n.op == "call_module")
    return infer_output(node, net, (x,), {})


@pytest.mark.parametrize(("module", "shape"), KNOWN)
def test_a_guess_is_like_the_result(module: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    guessed, made = guess(module, x), module.eval()(x)
    assert guessed is not None
    assert guessed.shape == made.shape
    assert guessed.dtype is made.dtype


@pytest.mark.parametrize(("module", "shape"), UNKNOWN)
def test_what_may_fail_or_is_not_known_is_called(module: nn.Module, shape: tuple[int, ...]) -> None:
    assert guess(module, torch.randn(shape)) is None


def test_a_hook_is_called() -> None:
    layer = nn.Linear(4, 7)
    layer.register_forward_hook(lambda *_: None)
    assert guess(layer, torch.randn(2, 4)) is None


def test_no_layer_is_run_while_gates_are_added(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    convolve = nn.Conv2d._conv_forward

    def record(layer: nn.Conv2d, *arguments: Any) -> Tensor:
        calls.append(layer)
        return convolve(layer, *arguments)

    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 3))
    x = torch.ones(1, 1, 8, 8)
    monkeypatch.setattr(nn.Conv2d, "_conv_forward", record)
    model = al.add_gates(net, x)
    assert calls == []
    model(x)
    assert len(calls) == 2


def test_inputs_that_do_not_fit_are_refused_as_before() -> None:
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Conv2d(3, 2, 3))
    with pytest.raises(al.InputError, match="does not run on the example inputs: at '0'") as caught:
        al.add_gates(net, torch.randn(1, 2, 8, 8))
    assert str(caught.value).endswith("on the device and in the dtype of the model")


KINDS: list[Any] = [nn.MaxPool1d, nn.AvgPool1d, nn.MaxPool2d, nn.AvgPool2d, nn.MaxPool3d]
OPTIONS = [
    {"kernel_size": kernel, "stride": stride, "padding": padding}
    for kernel, stride, padding in itertools.product((1, 2, 3), (None, 1, 2), (0, 1))
    if padding <= kernel // 2
]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_guess_has_the_shape_of_the_result(kind: Any, options: dict[str, Any]) -> None:
    pool = kind(**options)
    x = torch.randn(2, 3, *(7, 8, 9)[: int(kind.__name__[-2])])
    for given in (x, x[0]):
        guessed = infer_pool(pool, given)
        assert guessed is not None
        assert guessed.shape == pool(given).shape


def test_windows_of_other_sizes_along_each_dimension() -> None:
    pool = nn.MaxPool2d((3, 2), stride=(1, 3), padding=(1, 0), dilation=(2, 1))
    x = torch.randn(1, 2, 9, 8)
    guessed = infer_pool(pool, x)
    assert guessed is not None
    assert guessed.shape == pool(x).shape


@pytest.mark.parametrize(
    ("pool", "x"),
    [
        (nn.MaxPool2d(2, ceil_mode=True), torch.randn(1, 2, 5, 5)),
        (nn.MaxPool2d(2, return_indices=True), torch.randn(1, 2, 5, 5)),
        (nn.MaxPool2d(8), torch.randn(1, 2, 5, 5)),
        (nn.MaxPool2d(2), torch.ones(1, 2, 5, 5, dtype=torch.long)),
        (nn.MaxPool2d(2), torch.randn(5, 5)),
        (nn.MaxPool2d(2, padding=2), torch.randn(1, 2, 5, 5)),
        (nn.AdaptiveAvgPool2d(1), torch.randn(1, 2, 5, 5)),
        (nn.LPPool2d(2, 2), torch.randn(1, 2, 5, 5)),
    ],
)
def test_what_may_fail_or_give_something_else_is_called(pool: nn.Module, x: torch.Tensor) -> None:
    assert infer_pool(pool, x) is None
