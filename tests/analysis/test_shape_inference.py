"""A call whose result is known but for its numbers need not be made."""

from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import archlearn as al
from archlearn.analysis.shape_inference import infer_output

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
