"""What is known of an operation is one entry of one table, and every room agrees with it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, fx, nn

import archlearn as al
from archlearn.analysis.propagation_rules import find_rule
from archlearn.op_table import ACTIVATE, HOMES, OPERATIONS, spec_of, spec_of_class
from archlearn.serialization.layer_registry import all_layers
from archlearn.serialization.values import (
    SAVED_METHODS,
    all_operations,
    find_operation,
    torchvision_names,
)

ALLOWED = (Path(__file__).parent / "golden" / "allowed_calls.txt").read_text().split()


def may_stand_in_a_file(call: str) -> bool:
    """Return whether a file may hold a call that is written as in the table."""
    listed = {*all_operations(), *all_layers(), *torchvision_names()}
    listed |= {f"Tensor.{name}" for name in SAVED_METHODS}
    return {"nn": f"torch.{call}", "bu": "getattr"}.get(call[:2], call) in listed


def test_no_call_belongs_to_two_operations() -> None:
    calls = [call for spec in OPERATIONS for call in spec.calls]
    assert sorted(calls) == sorted(set(calls))


def test_torch_has_every_call() -> None:
    for call in (call for spec in OPERATIONS for call in spec.calls):
        home, _, name = call.rpartition(".")
        assert call.startswith(("torchvision.", "timm.")) or hasattr(HOMES[home], name), call


def test_every_rule_is_a_function() -> None:
    assert all(callable(find_rule(spec.rule)) for spec in OPERATIONS if spec.rule)


def test_every_activation_and_rule_may_stand_in_a_file_or_says_why_not() -> None:
    for spec in OPERATIONS:
        held = [call for call in spec.calls if may_stand_in_a_file(call)]
        assert held == ([] if spec.unsaved else list(spec.calls))
        has_gates = spec.calls == ("archlearn.TriState",)
        assert has_gates or not (spec.unsaved and spec.rule == ACTIVATE)


def test_what_a_file_could_hold_it_still_can() -> None:
    calls = [call.replace("torch.nn.", "nn.") for call in ALLOWED]
    assert len(calls) > 600
    assert [call for call in calls if not may_stand_in_a_file(call)] == []


@pytest.mark.parametrize("name", ["torch.load", "torch.compile", "operator.call", "builtins.eval"])
def test_what_runs_code_is_no_operation(name: str) -> None:
    with pytest.raises(ValueError, match="not an operation that a file may name"):
        find_operation(name)


def test_a_subclass_is_the_operation_whose_forward_it_has() -> None:
    class Renamed(nn.BatchNorm2d): ...

    class Changed(nn.BatchNorm2d):
        def forward(self, input: Tensor) -> Tensor:  # noqa: A002
            return super().forward(input) + 1

    assert spec_of_class(Renamed) is spec_of_class(nn.BatchNorm2d)
    assert spec_of_class(Changed) is None


def test_nothing_is_known_of_a_layer_with_a_forward_of_its_own() -> None:
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    graph = fx.Tracer().trace(net)
    last = next(node for node in graph.nodes if node.target == "2")
    assert spec_of(last, net) is spec_of_class(nn.Linear)
    vars(net[2])["forward"] = lambda x: x.flip(1)
    assert spec_of(last, net) is None


class Called(nn.Module):
    """Calls a function of each element between two layers."""

    def __init__(self, call: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last, self.call = nn.Linear(4, 6), nn.Linear(6, 2), call

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.call(self.first(x)))


@pytest.mark.parametrize(
    "call",
    [
        torch.selu,
        torch.celu_,
        lambda x: torch.relu(x).abs_(),
        lambda x: torch.relu(x).clamp_(0.1, 2.0),
        lambda x: torch.relu(x).pow_(2),
    ],
)
def test_every_way_to_call_an_operation_is_learnt_and_saved(
    call: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, dtype=torch.float64)
    gated = al.add_gates(Called(call).double(), x)
    with torch.no_grad():
        al.width_gates(gated)["first"][[0, 3]] = 0.0
    small = al.compact(gated)
    al.save(small, tmp_path / "small.safetensors")
    found = al.load(tmp_path / "small.safetensors")
    assert small.get_parameter("first.weight").shape == (4, 4)
    torch.testing.assert_close(found(x), gated(x), rtol=0, atol=1e-10)


class Counted(nn.Module):
    """Asks by functions what others ask by methods."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(x))
        if torch.is_complex(y) or not torch.is_floating_point(y):
            return y
        return self.last(y / torch.numel(y))


def test_a_function_asks_what_its_method_asks() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4, dtype=torch.float64)
    gated = al.add_gates(Counted().double(), x)
    with torch.no_grad():
        al.width_gates(gated)["first"][[0, 3]] = 0.0
    small, more = al.compact(gated), torch.randn(5, 4, dtype=torch.float64)
    assert small.get_parameter("first.weight").shape == (4, 4)
    torch.testing.assert_close(small(more), gated(more), rtol=0, atol=1e-10)
