"""The benchmark of real models says what became of each, and can say that it went wrong."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.zoo.catalogue import build, draw_inputs, read_entries
from benchmarks.zoo.measure import (
    difference,
    find_heads,
    leaves,
    measure,
    output_types,
    set_head_sizes_,
    silent_groups,
)
from benchmarks.zoo.page import _FAMILIES, larger, matrix, table

OWN = "benchmarks.zoo.networks:"


class Skips(nn.Module):
    """A block that is skipped whenever the model trains."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if self.training else x + self.block(x)


def test_every_entry_has_a_class_and_inputs() -> None:
    entries = read_entries()
    assert len(entries) == 332
    for name, entry in entries.items():
        arguments, options = draw_inputs(entry, seed=0)
        assert leaves([arguments, options]), name
        assert ":" in entry["call"]


@pytest.mark.parametrize("name", ["Concat", "Split", "TemporalConvNet", "WaveNet"])
def test_a_network_of_our_own_is_measured(name: str) -> None:
    entry = next(e for e in read_entries().values() if e["call"] == OWN + name)
    ours = measure(name, entry, "archlearn")
    assert ours["result"] == "exact"
    assert 0 < ours["left"] < 1
    assert ours["types_kept"]
    assert ours["silent_in_training"] == []
    assert f"| {name} | exact |" in table([ours], [name])


def test_a_model_that_does_not_run_is_no_refusal() -> None:
    entry = {"call": OWN + "LeNet", "inputs": ["normal 2 1 9 9"]}
    assert measure("LeNet", entry, "archlearn")["result"] == "the model itself fails"


def test_what_nothing_can_be_learnt_in_is_refused_with_its_reason() -> None:
    entry = {"call": "torch.nn:Linear", "positional": [4, 2], "inputs": ["normal 2 4"]}
    row = measure("Linear", entry, "archlearn")
    assert row["result"] == "refused"
    assert "nothing can be learnt" in row["said"]


def test_gates_that_act_in_evaluation_only_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = Skips(), torch.randn(3, 4)
    monkeypatch.setattr("benchmarks.zoo.measure.width_gates", lambda _: {"a": net.block[0].weight})
    assert silent_groups(net, ((x,), {})) == ["a"]


def test_other_numbers_shapes_and_types_are_noticed() -> None:
    x = torch.randn(3, 4, dtype=torch.float64)
    assert difference(x, x + 1e-6) > 1e-8
    assert difference(x, x[:2]) == float("inf")
    assert output_types({"a": [x]}) != output_types({"a": (x,)})
    nothing = torch.full((2,), torch.nan)
    assert difference(nothing, nothing) == float("inf")


def test_constants_are_disturbed_and_each_draw_is_its_own() -> None:
    entry: dict[str, Any] = {"call": OWN + "SingleChannelOutput", "inputs": ["normal 2 3 8 8"]}
    net = build(entry)
    assert all(p.unique().numel() == p.numel() for p in net.parameters())
    first, second = draw_inputs(entry, 0)[0][0], draw_inputs(entry, 1)[0][0]
    assert not torch.equal(first, second)


class Attention(nn.Module):
    """Attention as timm names its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.head_dim = 2, 4
        self.qkv, self.proj = nn.Linear(8, 24), nn.Linear(8, 8)


def test_layers_with_heads_are_found_for_torch_pruning_and_told_their_size() -> None:
    attention = Attention()
    net = nn.Sequential(attention, nn.Linear(8, 8))
    assert find_heads(net) == {attention.qkv: 2}
    attention.qkv.out_features = 12
    set_head_sizes_(net, find_heads(net))
    assert attention.head_dim == 2
    entry = {"call": OWN + "LeNet", "inputs": ["normal 2 1 28 28"]}
    assert measure("LeNet", entry, "torch-pruning heads")["result"] == "no heads"


def test_the_matrix_counts_what_is_learnt_by_family() -> None:
    entry = {"call": OWN + "LeNet", "inputs": ["normal 2 1 28 28"]}
    own = measure("own/a", entry, "archlearn") | {"commit": "abc"}
    old = {"model": "own/b", "side": "archlearn", "result": "exact", "groups": 0, "commit": "abc"}
    refused = {"model": "hf/c", "side": "archlearn", "result": "refused", "commit": "abc"}
    other = {"model": "hf/c", "side": "torch-pruning", "result": "runs", "commit": "abc"}
    text = matrix([own, old, refused, other], ["own/a", "own/b", "own/d", "hf/c"])
    assert "| 2 of 3 | 2 | 1 | 1 | 0 |  |" in text
    assert "| transformers | 1 of 1 | 0 | – | – | – | c (refused) |" in text


def test_the_page_says_where_more_is_left_than_torch_pruning_leaves_and_why() -> None:
    sides = {"archlearn": 0.5, "torch-pruning": 0.6, "torch-pruning heads": 0.4}
    rows = [
        {"model": model, "side": side, "left": left}
        for model in ("tp-tests/test_concat", "hf/a")
        for side, left in sides.items()
    ]
    rows.append({"model": "hf/b", "side": "archlearn", "left": 0.9})
    rows += [{**rows[0], "model": "hf/c", "left": 0.401}, {**rows[2], "model": "hf/c"}]
    said = larger(rows, ["tp-tests/test_concat", "hf/a", "hf/b", "hf/c"]).splitlines()[2:]
    assert len(said) == 2
    assert said[0].startswith("* tp-tests/test_concat (0.500, Torch-Pruning 0.400): one of three")
    assert said[1].endswith("not known.")


def test_every_model_has_a_family_in_the_matrix() -> None:
    assert {name.partition("/")[0] for name in read_entries()} == set(_FAMILIES)
