"""A network is brought into a window of sizes, and its dropout relaxed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import archlearn as al
from archlearn.models import CaffeNet, CaffeNetSizes
from archlearn_paper.parameter_budget import Dropped, Relaxing, Window, fit_to_window_

SIZES = CaffeNetSizes(side=67, n_outputs=5, factor=1 / 16)


def gated(seed: int, low: float = 0.3, high: float = 0.8) -> nn.Module:
    torch.manual_seed(seed)
    net = CaffeNet(SIZES)
    model = al.add_gates(net, torch.zeros(2, 3, 67, 67), learn={"*": al.Learn.WIDTH})
    with torch.no_grad():
        for gate in al.width_gates(model).values():
            gate.uniform_(low, high)
    return model.eval()


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in al.compact(model).parameters())


def values(model: nn.Module) -> torch.Tensor:
    return torch.cat([gate.detach().clone() for gate in al.width_gates(model).values()])


@settings(max_examples=15)
@given(seed=st.integers(0, 5), share=st.floats(0.2, 0.9), offset=st.floats(-0.2, 0.2))
def test_the_compact_network_lies_in_the_window(seed: int, share: float, offset: float) -> None:
    model = gated(seed, 0.3 + offset, 0.8 + offset)
    whole = sum(p.numel() for p in CaffeNet(SIZES).parameters())
    least, most = round((share - 0.05) * whole), round(share * whole)
    fit_to_window_(model, least, most)
    assert least <= size(model) <= most


def test_those_nearest_to_one_half_change_and_no_others() -> None:
    model = gated(0)
    before, found = values(model), size(model)
    fit_to_window_(model, 0, round(0.8 * found))
    after = values(model)
    changed = before != after
    assert size(model) <= 0.8 * found
    assert bool((before[changed] >= 0.5).all())
    assert bool((after[changed] < 0.5).all())
    best = torch.cat([gate == gate.max() for gate in al.width_gates(model).values()])
    assert float(before[changed].max()) <= float(before[(after >= 0.5) & ~best].min())


def test_what_closed_last_opens_again_where_too_little_is_left() -> None:
    model = gated(0, 0.2, 0.55)
    before, found = values(model), size(model)
    fit_to_window_(model, 2 * found, 3 * found)
    after = values(model)
    opened = (before < 0.5) & (after >= 0.5)
    assert 2 * found <= size(model) <= 3 * found
    assert float(before[opened].min()) >= float(before[after < 0.5].max())


def test_a_network_in_the_window_stays_as_it_is() -> None:
    model = gated(0)
    before = values(model)
    fit_to_window_(model, size(model), size(model))
    assert torch.equal(values(model), before)


def test_a_window_out_of_reach_changes_nothing_and_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = gated(0)
    before = values(model)
    fit_to_window_(model, 1, 10)
    assert torch.equal(values(model), before)
    assert "1 to 10 parameters cannot be reached" in caplog.text


def test_the_cut_is_made_after_its_epoch_alone() -> None:
    model = gated(0)
    before = values(model)
    window = Window(epoch=2, least=0, most=round(0.8 * size(model)))
    window(model, 1)
    assert torch.equal(values(model), before)
    window(model, 2)
    assert not torch.equal(values(model), before)


LAYERS = (Dropped("drop6", "fc6", "conv5"), Dropped("drop7", "fc7", "fc6"))


def test_rates_fall_with_the_root_of_the_connections_left() -> None:
    net = CaffeNet(CaffeNetSizes(side=67, n_outputs=5, factor=1 / 16))
    model = al.add_gates(net, torch.zeros(2, 3, 67, 67), learn={"fc*": al.Learn.WIDTH})
    with torch.no_grad():
        al.width_gates(model)["fc6"][:64] = 0.0
        al.width_gates(model)["fc7"][:128] = 0.0
    every = Relaxing(window=Window(epoch=2, least=0, most=10**9), layers=LAYERS)
    every(model, 1)
    assert [rate(model, name) for name in ("drop6", "drop7")] == [0.5, 0.5]
    every(model, 2)
    wanted = [0.5 * 0.75**0.5, 0.5 * (0.75 * 0.5) ** 0.5]
    small = al.compact(model.eval())
    assert [rate(model, name) for name in ("drop6", "drop7")] == pytest.approx(wanted)
    assert [rate(small, name) for name in ("drop6", "drop7")] == pytest.approx(wanted)
    assert net.drop6.p == 0.5, "the network it came from is left alone"


def rate(model: nn.Module, name: str) -> float:
    dropout = model.get_submodule(name)
    assert isinstance(dropout, nn.Dropout)
    return dropout.p
