"""A plan is plain data: what will be kept, folded and merged, and what that costs."""

import copy
import json
from collections.abc import Callable
from dataclasses import astuple
from itertools import pairwise

import pytest
import torch
from torch import nn

import archlearn as al

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


def chain(*sizes: int, norm: bool = False) -> nn.Module:
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(sizes[:-1]):
        layers += [nn.Linear(n_in, n_out), *([nn.BatchNorm1d(n_out)] if norm else []), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(sizes[-2], sizes[-1]))


@torch.no_grad()
def gate(
    net: nn.Module, closed: dict[str, list[int]] | None = None, linear: tuple[str, ...] = ()
) -> nn.Module:
    model = al.add_gates(net, X).eval()
    for name, channels in (closed or {}).items():
        al.width_gates(model)[name][channels] = 0.1
    for name in linear:
        al.depth_gates(model)[name].fill_(0.9)
    return model


def test_open_gates_change_nothing() -> None:
    plan = al.plan(gate(chain(4, 6, 5, 3)))
    assert plan.narrowings == plan.folds == plan.linear == plan.merges == ()
    assert plan.widths == {"0": tuple(range(6)), "2": tuple(range(5))}
    assert plan.before == plan.after == al.Costs(30 + 35 + 18, 5 * (24 + 30 + 15))


def test_narrowings_name_every_parameter_and_the_indices_kept() -> None:
    plan = al.plan(gate(chain(4, 6, 5, 3), {"0": [1, 4], "2": [0]}))
    assert set(map(astuple, plan.narrowings)) == {
        ("0.weight", 0, 6, (0, 2, 3, 5)),
        ("0.bias", 0, 6, (0, 2, 3, 5)),
        ("2.weight", 1, 6, (0, 2, 3, 5)),
        ("2.weight", 0, 5, (1, 2, 3, 4)),
        ("2.bias", 0, 5, (1, 2, 3, 4)),
        ("4.weight", 1, 5, (1, 2, 3, 4)),
    }
    assert plan.after == al.Costs(20 + 20 + 15, 5 * (16 + 16 + 12))


def test_buffers_of_a_batch_norm_are_narrowed_too() -> None:
    plan = al.plan(gate(chain(4, 6, 3, norm=True), {"0": [1]}))
    names = {n.name for n in plan.narrowings}
    assert {"1.weight", "1.bias", "1.running_mean", "1.running_var"} <= names


def test_an_optimizers_state_can_follow_the_narrowings() -> None:
    """Each compact parameter is the gated one at the indices that the plan names: no more."""
    model = gate(chain(4, 6, 5, 3, norm=True), {"0": [1, 4], "3": [0]})
    plan, small = al.plan(model), al.compact(model)
    state = dict(model.state_dict())
    for n in plan.narrowings:
        state[n.name] = state[n.name].index_select(n.dim, torch.tensor(n.kept))
    expected = {name: t for name, t in state.items() if not name.startswith("archlearn_gates")}
    found = dict(small.state_dict())
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(tensor, expected[name]), name


def test_a_merge_that_pays_worked_by_hand() -> None:
    """Apart `(4+1)·6 + (6+1)·3`, as one `(4+1)·3`."""
    plan = al.plan(gate(chain(4, 6, 3), linear=("0",)))
    assert plan.linear == ("0",)
    assert [astuple(merge) for merge in plan.merges] == [
        (("0", "2"), (), ("0",), 30 + 21, 15, True)
    ]
    assert plan.after == al.Costs(15, 5 * 12)
    assert str(plan.merges[0]) == "0 + 2: 51 -> 15 (merged)"


def test_a_merge_that_does_not_pay_is_left_worked_by_hand() -> None:
    """Apart `(4+1)·1 + (1+1)·3`, as one `(4+1)·3`."""
    plan = al.plan(gate(chain(4, 6, 3), {"0": [0, 1, 2, 3, 4]}, linear=("0",)))
    assert list(map(astuple, plan.merges)) == [(("0", "2"), (), ("0",), 5 + 6, 15, False)]
    assert plan.after.parameters == 11
    assert "(not merged, it does not pay)" in str(plan)


def test_what_a_merge_must_lower_is_the_users_choice() -> None:
    """At 4-2-4: 10 + 12 parameters against 20, but 8 + 8 multiply-adds against 16: no gain."""
    model = gate(chain(4, 2, 4), linear=("0",))
    assert al.plan(model, pay="parameters").merges[0].made
    plan = al.plan(model, pay="multiply_adds")
    assert not plan.merges[0].made
    assert (plan.merges[0].before, plan.merges[0].after) == (5 * 16, 5 * 16)
    assert plan.pay == "multiply_adds"


def test_a_plan_is_carried_out_as_its_user_chose() -> None:
    model = gate(chain(4, 2, 4), linear=("0",))
    small = al.compact(model, plan=al.plan(model, pay="multiply_adds"))
    assert al.count_costs(small).parameters == 10 + 12
    assert al.count_costs(al.compact(model)).parameters == 20


class Twice(nn.Module):
    """One layer called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.both, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.both(torch.relu(self.first(x))))
        return self.last(torch.relu(self.both(y)))


def test_the_work_of_a_layer_called_twice_is_counted_twice() -> None:
    model = al.add_gates(Twice(), X)
    (name,) = al.width_gates(model)
    with torch.no_grad():
        al.width_gates(model)[name][[0, 1]] = 0.0
    plan = al.plan(model)
    assert plan.after == al.Costs(20 + 20 + 15, 5 * (16 + 2 * 16 + 12))
    assert al.count_costs(al.compact(model)) == plan.after


def test_a_run_of_linear_layers_merges_in_the_cheapest_parts() -> None:
    """4-9-1-9-4 with all linear: 4-1-4 costs 5 + 8, less than one layer of 20."""
    plan = al.plan(gate(chain(4, 9, 1, 9, 4), linear=("0", "2", "4")))
    made = [merge.layers for merge in plan.merges if merge.made]
    assert made == [("0", "2"), ("4", "6")]
    assert plan.after.parameters == 5 + 8


def test_a_norm_between_is_folded_and_counted() -> None:
    plan = al.plan(gate(chain(4, 6, 3, norm=True), linear=("0",)))
    (merge,) = plan.merges
    assert (merge.layers, merge.norms) == (("0", "3"), ("1",))
    assert (merge.before, merge.after) == (30 + 12 + 21, 15)


def test_a_norm_between_layers_without_bias_gives_the_merged_one_a_bias() -> None:
    net = nn.Sequential(
        nn.Linear(4, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3, bias=False)
    )
    model = gate(net, linear=("0",))
    (merge,) = al.plan(model).merges
    assert (merge.before, merge.after) == (24 + 12 + 18, 12 + 3)
    small = al.compact(model)
    assert al.count_costs(small).parameters == 15
    torch.testing.assert_close(small(X), model(X))


class Behind(nn.Module):
    """A BatchNorm behind the activation makes a dropped channel a constant."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(4, 6), nn.BatchNorm1d(6)
        self.last = nn.Linear(6, 3, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(torch.relu(self.first(x))))


def test_constants_move_into_the_next_bias() -> None:
    plan = al.plan(gate(Behind(), {"first": [1, 4]}))
    (fold,) = plan.folds
    assert (fold.layer, fold.columns) == ("last", (1, 4))
    assert "last: 2 constants into the bias" in str(plan)


def test_a_bias_that_a_fold_makes_is_counted() -> None:
    model = gate(Behind(bias=False), {"first": [1, 4]})
    plan, small = al.plan(model), al.compact(model)
    assert plan.after.parameters == 20 + 8 + 12 + 3
    assert al.count_costs(small) == plan.after


@pytest.mark.parametrize(
    ("net", "closed", "linear"),
    [
        (chain(4, 6, 5, 3), {"0": [1, 4]}, ("2",)),
        (Behind(), {"first": [1]}, ()),
        (chain(4, 6, 3, norm=True), {}, ("0",)),
        (chain(4, 6, 3), {"0": [0, 1, 2, 3, 4]}, ("0",)),
    ],
)
def test_a_plan_goes_through_json(
    net: nn.Module, closed: dict[str, list[int]], linear: tuple[str, ...]
) -> None:
    model = gate(net, closed, linear)
    plan = al.plan(model)
    assert al.Plan.from_json(plan.to_json()) == plan
    assert al.compact(model, plan=al.Plan.from_json(plan.to_json())).certificate.difference < 1e-3


def test_a_plan_prints_what_it_will_do() -> None:
    lines = str(al.plan(gate(chain(4, 6, 5, 3), {"0": [1]}, linear=("2",)))).splitlines()
    assert lines[0].startswith("plan: 83 parameters, 345 multiply-adds -> ")
    assert "  0.weight dimension 0: keep 5 of 6" in lines
    assert "  2: linear" in lines
    assert any(line.startswith("  2 + 4: ") for line in lines)


def test_planning_leaves_the_model_alone() -> None:
    model = gate(chain(4, 6, 3, norm=True), {"0": [1]}, linear=("0",)).train()
    before = copy.deepcopy(model.state_dict())
    al.plan(model)
    assert model.training
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), r"gate '2' holds NaN; the loss has diverged: lower the learning rate"),
        (
            -0.2,
            r"gate '2' lies between -0.2 and 0.55, outside \[0, 1\]; call archlearn.clip_gates_",
        ),
        (1.2, r"gate '2' lies between 0.55 and 1.2, outside"),
        (float("inf"), r"gate '2' lies between 0.55 and inf, outside"),
    ],
)
def test_a_gate_that_is_none_is_refused(value: float, message: str) -> None:
    model = gate(chain(4, 6, 5, 3))
    with torch.no_grad():
        al.width_gates(model)["2"][3] = value
    for call in (al.plan, al.compact, al.read_architecture):
        with pytest.raises(al.GateError, match=message):
            call(model)


def test_a_depth_gate_that_is_none_is_refused() -> None:
    model = gate(chain(4, 6, 3))
    with torch.no_grad():
        al.depth_gates(model)["0"].fill_(float("nan"))
    with pytest.raises(al.GateError, match="gate '0' holds NaN"):
        al.plan(model)


def test_what_must_be_lowered_must_be_known() -> None:
    with pytest.raises(al.InputError, match="pay is 'flops'; say what a merge must lower: param"):
        al.plan(gate(chain(4, 6, 3)), pay="flops")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"archlearn_plan": 1}', '{"archlearn_plan": "x"}', "null"]
)
def test_text_that_is_no_plan_is_refused(text: str) -> None:
    with pytest.raises(al.InputError, match="no plan that archlearn wrote"):
        al.Plan.from_json(text)


def test_a_plan_of_a_later_version_is_refused() -> None:
    data = json.loads(al.plan(gate(chain(4, 6, 3))).to_json())
    text = json.dumps(data | {"archlearn_plan": 99})
    with pytest.raises(al.InputError, match="version 99; this archlearn reads 2"):
        al.Plan.from_json(text)


def test_a_model_without_gates_needs_example_inputs() -> None:
    with pytest.raises(
        al.InputError, match="has no gates, so what is closed is read off its weights"
    ):
        al.plan(chain(4, 6, 3))


def tied_chain() -> nn.Module:
    net = chain(4, 6, 6, 6, 3)
    net.get_submodule("4").weight = net.get_submodule("2").weight
    return net


def tie_(model: nn.Module) -> None:
    model.get_submodule("4").weight = model.get_submodule("2").weight


def untie_(model: nn.Module) -> None:
    model.load_state_dict(model.state_dict(), assign=True)


def take_away_(model: nn.Module) -> None:
    model.get_submodule("2").bias = None


@pytest.mark.parametrize(
    ("net", "change_", "message"),
    [
        (chain(4, 6, 6, 6, 3), tie_, "'2.weight' was tied to another layer, or untied from it"),
        (tied_chain(), untie_, r"'2.weight' was tied.*assign=True\) unties weights"),
        (chain(4, 6, 6, 6, 3), take_away_, "'2.bias' is gone since gates were added"),
    ],
    ids=["tied", "untied", "gone"],
)
def test_tensors_that_are_other_ones_since_are_refused_before_anything_is_cut(
    net: nn.Module, change_: Callable[[nn.Module], None], message: str
) -> None:
    model = al.add_gates(net, X).eval()
    with torch.no_grad():
        for gates in al.width_gates(model).values():
            gates[3:] = 0.1
    change_(model)
    expected = model(X)
    for call in (al.plan, al.compact, al.shrink_):
        with pytest.raises(al.InputError, match=message):
            call(model)
    torch.testing.assert_close(model(X), expected, rtol=0, atol=0)
