"""What is asked for wrongly is refused by a typed error that says what to do."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel

import archlearn as al

X = torch.randn(3, 4)


def make_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.mark.parametrize("wrong", [None, "net", [X], make_net().state_dict(), nn.Linear, F.relu])
@pytest.mark.parametrize(
    "function",
    [
        lambda net: al.add_gates(net, X),
        lambda net: al.inspect(net, X),
        lambda net: al.GateOptimizer(net, total_steps=10),
        lambda net: al.penalty(net, al.Strengths.from_width_cost(1e-3)),
        lambda net: al.certify(net, make_net(), X),
        lambda net: al.save(net, "small.safetensors"),
        al.branch_gates,
        al.clip_gates_,
        al.compact,
        al.count_costs,
        al.depth_gates,
        al.plan,
        al.read_architecture,
        al.weights,
        al.width_gates,
    ],
)
def test_what_is_no_module_is_named(function: Callable[[Any], object], wrong: Any) -> None:
    with pytest.raises(al.InputError, match=r"the model is an? \w+; give an nn.Module, made alrea"):
        function(wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learn": ["0"]}, r"learn is a list; give a dict from layer names to Learn"),
        ({"learn": al.Learn.WIDTH}, r"learn is a Learn; give a dict from layer names"),
        ({"learn": {0: al.Learn.WIDTH}}, r"learn has the key 0; layers are named by strings"),
        ({"leaves": "0"}, r"leaves is '0'; give a list of names and classes: \['0'\]"),
        ({"leaves": [0]}, r"leaves holds 0; give names of submodules or classes of modules"),
        ({"leaves": [nn.Linear(2, 2)]}, r"leaves holds Linear\(.*; give names of submodules or"),
        ({"leaves": 3}, r"leaves is 3; give a list of names and classes"),
        ({"leaves": None}, r"leaves is None; give a list of names and classes"),
        ({"width_start": "a"}, r"width_start is 'a'; a gate lies in \[0, 1\]"),
    ],
)
def test_options_of_add_gates_are_looked_at_first(options: dict[str, Any], message: str) -> None:
    with pytest.raises(al.InputError, match=message):
        al.add_gates(make_net(), X, **options)


def test_a_model_without_numbers_is_refused() -> None:
    net = make_net().to("meta")
    for function in (al.add_gates, al.inspect):
        with pytest.raises(al.InputError, match=r"'0.weight' is on the meta device.*to_empty"):
            function(net, X)

    model: nn.Module = al.add_gates(make_net(), X).to("meta")
    for function in (al.plan, al.compact, al.read_architecture, al.shrink_):
        with pytest.raises(al.InputError, match=r"'0.weight' is on the meta device.*to_empty"):
            function(model)


WRONG: Any = "x"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda: al.GateSchedule(memory=WRONG), "memory is 'x'; a decay is from 0 to below 1"),
        (lambda: al.GateSchedule(begin=WRONG), "begin is 'x' and end 0.7; both are parts of"),
        (lambda: al.certify(make_net(), make_net(), X, tolerance=WRONG), "tolerance is 'x'; give"),
        (
            lambda: al.load(__file__, modules=cast("Any", [1])),
            "modules is a list; give a dict from names to cl",
        ),
        (
            lambda: al.save(make_net(), "a", modules=cast("Any", {1: nn.Linear})),
            "in modules, 1, is an int; g",
        ),
        (lambda: al.load(__file__, modules={"a": WRONG}), r"modules\['a'\] is a str; give a dict"),
        (lambda: al.distill(cast("Tensor", {"logits": X}), X), "outputs is a dict; give the scor"),
        (lambda: al.distill(X, X[:1]), r"shape \(3, 4\), but teacher_outputs \(1, 4\); give both"),
        (lambda: al.distill(X, X, temperature=0), "temperature is 0; give a number above 0"),
        (lambda: al.distill(X, X, temperature=WRONG), "temperature is 'x'; give a number above 0"),
        (lambda: al.Strengths.from_width_cost(1, WRONG), "ratio is 'x'; it must lie between 0 an"),
        (lambda: al.Strengths.from_width_cost(1, depth_share=WRONG), "depth_share is 'x'; a stre"),
        (lambda: al.load(cast("str", None)), "path is a NoneType; give the name of a file"),
        (lambda: al.save(make_net(), cast("str", 3)), "path is an int; give the name of a file"),
    ],
)
def test_arguments_are_looked_at_first(function: Callable[[], object], message: str) -> None:
    with pytest.raises(al.InputError, match=message):
        function()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": "x"}, r"schedule is a str; give an archlearn.GateSchedule\(...\)"),
        ({"schedule": {}}, r"schedule is a dict; give an archlearn.GateSchedule\(...\)"),
        ({"every": 0}, "every is 0; give a whole number from 1 on"),
        ({"protect": None}, r"protect is a NoneType; give names of layers, such as \["),
        ({"protect": [0]}, r"a name in protect is an int; give names of layers, such as \["),
        ({"budget": {"latency": "50%"}, "latency": 3}, "latency is an int; give what measure_la"),
    ],
)
def test_options_of_a_gate_optimizer_are_looked_at_first(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(al.InputError, match=message):
        al.GateOptimizer(al.add_gates(make_net(), X), 10, **options)


def test_states_of_something_else_are_refused() -> None:
    model: nn.Module = al.add_gates(make_net(), X)
    gates = al.GateOptimizer(model, 10)
    optimizer = torch.optim.SGD(al.weights(model), lr=0.1)
    wrong: list[Any] = [{}, None, optimizer.state_dict(), model.state_dict()]
    for state in wrong:
        with pytest.raises(al.InputError, match="the state is of no GateOptimizer; give what its"):
            gates.load_state_dict(state)
    gates.load_state_dict(gates.state_dict())
    with pytest.raises(al.InputError, match="like is a list; give the state_dict of a model that"):
        al.shrink_(model, optimizer, gates, like=cast("dict[str, Any]", [1]))
    with pytest.raises(al.InputError, match=r"copies is an int; give a list of models: copies=\["):
        al.shrink_(model, optimizer, gates, copies=cast("Any", 3))
    al.shrink_(model, optimizer, gates, copies=AveragedModel(model))


def test_parts_that_were_gated_separately_are_named() -> None:
    x = torch.randn(3, 2)
    second = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 2))
    both = nn.Sequential(al.add_gates(make_net(), X), al.add_gates(second, x))
    with pytest.raises(al.InputError, match="added to '0' and '1' separately; call inspect on ea"):
        al.inspect(both)
    with pytest.raises(al.InputError, match="in the submodule '0' and '1'; call plan, compact or"):
        al.compact(both)


def test_a_bias_given_behind_add_gates_is_named() -> None:
    net = make_net()
    net[0].register_parameter("bias", None)
    model: Any = al.add_gates(net, X)
    model[0].bias = nn.Parameter(torch.zeros(8))
    al.compact(model)  # it takes all channels
    al.width_gates(model)["0"].data[:3] = 0.0
    for function in (al.plan, al.compact, al.shrink_):
        with pytest.raises(al.InputError, match=r"'0.bias' is new since gates were added.*before"):
            function(model)


def test_an_example_without_rows_is_refused() -> None:
    with pytest.raises(al.InputError, match=r"example_inputs hold a tensor of shape \(0, 4\)"):
        al.add_gates(make_net(), X[:0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "lr is -1.0; a rate is a number from 0 on"),
        ({"lr": "fast"}, "lr is 'fast'; a rate is a number from 0 on"),
        ({"lr": 0.1, "gate_lr": float("nan")}, "gate_lr is nan; a rate is a number from 0 on"),
        ({"lr": 0.1, "weight_decay": -0.1}, "weight_decay is -0.1; a rate is a number from 0 on"),
        ({"lr": 0.1, "params": []}, "'params' are the weights and the gates; give other options"),
    ],
)
def test_rates_are_numbers(options: dict[str, Any], message: str) -> None:
    with pytest.raises(al.InputError, match=message):
        al.parameter_groups(al.add_gates(make_net(), X), **options)


def test_a_rate_may_be_a_tensor() -> None:
    rate: Any = torch.tensor(0.1)
    model = al.add_gates(make_net(), X)
    optimizer = torch.optim.SGD(al.parameter_groups(model, lr=rate))
    weights, gates = optimizer.param_groups
    before = {p: p.detach().clone() for group in (weights, gates) for p in group["params"]}
    (model(X).square().sum() + al.penalty(model, al.Strengths.from_width_cost(0.1))).backward()
    optimizer.step()
    assert float(weights["lr"]) == pytest.approx(0.1)
    for group in (weights, gates):
        for new in group["params"]:
            torch.testing.assert_close(new.detach(), before[new] - group["lr"] * new.grad)


def test_strengths_know_their_prices() -> None:
    wrong: Any = "parameters"
    with pytest.raises(al.InputError, match=r"price is 'parameters'; give Price.NEURONS, Price.P"):
        al.Strengths.from_width_cost(1e-3, price=wrong)
    with pytest.raises(al.InputError, match="width_cost is 'a'; a strength is a number from 0 on"):
        al.Strengths.from_width_cost("a")  # pyright: ignore[reportArgumentType]
    model: nn.Module = al.add_gates(make_net(), X)
    with pytest.raises(al.InputError, match=r"strengths is a float; give archlearn.Strengths"):
        al.penalty(model, 1e-3)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_channels": 2.5}, "n_channels is 2.5; a layer has at least one channel"),
        ({"activation": F.relu}, r"activation is a function; give a module, such as nn.ReLU\(\)"),
        ({"activation": nn.ReLU}, r"activation is a type; give a module, such as nn.ReLU\(\)"),
        ({"width": "learnt"}, r"width is 'learnt'; give Gate.LEARNT, Gate.FIXED or Gate.ABSENT"),
        ({"depth": True}, r"depth is True; give Gate.LEARNT, Gate.FIXED or Gate.ABSENT"),
    ],
)
def test_a_gate_placed_by_hand_is_looked_at_first(options: dict[str, Any], message: str) -> None:
    fitting: dict[str, Any] = {"n_channels": 4}
    with pytest.raises(al.InputError, match=message):
        al.TriState(**(fitting | options))


def test_a_tri_state_counts_dimensions_from_behind() -> None:
    site = al.TriState(4, depth=al.Gate.ABSENT, dim=-1)
    assert site(torch.ones(2, 3, 4)).shape == (2, 3, 4)
    with pytest.raises(al.InputError, match=r"along dimension -2, but its input has shape \(4,\)"):
        al.TriState(4, dim=-2)(torch.ones(4))


def test_inputs_that_do_not_fit_are_not_counted() -> None:
    with pytest.raises(al.InputError, match="Sequential does not run on the example inputs: mat1"):
        al.count_costs(make_net(), torch.randn(3, 5))


def test_a_folder_is_no_place_for_a_file(tmp_path: Path) -> None:
    with pytest.raises(al.FileError, match=r"is a folder; name a file in it"):
        al.save(al.compact(al.add_gates(make_net(), X)), tmp_path)
    assert not list(tmp_path.parent.glob("*.part"))


class NormByHand(nn.Module):
    """A batch norm that is told its mode, as in many a library."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> Tensor:
        norm = self.norm
        return F.batch_norm(x, norm.running_mean, norm.running_var, training=self.training)


def test_a_batch_of_one_is_too_few_for_norms_in_training() -> None:
    first, *rest = make_net()
    net = nn.Sequential(first, NormByHand(), *rest).eval()
    with pytest.raises(al.InputError, match=r"more than 1 value per.*two rows or more, for its"):
        al.add_gates(net, X[:1])
    assert al.compact(al.add_gates(net, X[:2])).certificate is not None
