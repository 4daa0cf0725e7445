"""One training step: optimisers, gradient clipping, updates; captured and eager steps agree."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import archlearn as al
from archlearn_cli.data import no_progress
from archlearn_cli.training import OptimizerSettings, RunSettings, Session, override, prepare
from archlearn_cli.training.checkpoint import collect_tensors, order_of_epoch
from archlearn_cli.training.cuda_graph import DeviceStep, _give_back, _state, largest_divisor
from archlearn_cli.training.defaults import Schedule
from archlearn_cli.training.train_step import (
    clip_gradients_,
    cut_evenly,
    make_optimizers,
    set_rates_,
    update_,
)

ASKED = {
    "model": "mlp:20-10",
    "data": "digits",
    "epochs": 2,
    "batch_size": 60,
    "limit": 600,
    "accelerator": "cpu",
    "start_after": 0.1,
    "gate_rate": 0.5,
}


def make_session(tmp_path: Path, **given: object) -> Session:
    return prepare(override(RunSettings(), ASKED | given), tmp_path, no_progress)


def run_eagerly(session: Session, n_steps: int) -> dict[str, Tensor]:
    order = order_of_epoch(len(session.dataset.train), 0, 0)
    session.stepper.begin_epoch(order, 0.0, 0.0)
    for place in range(n_steps):
        assert session.stepper.advance(place, place) == 1
    return collect_tensors(session.work.model, session.work.optimizers)


def run_on_device(session: Session, n_steps: int, *, compiled: bool = False) -> DeviceStep:
    """Do what a GPU captures, uncaptured and on the CPU."""
    optimizers = make_optimizers(session.work.model, session.settings.optimizer, on_device=True)
    for group in optimizers[0].param_groups:
        if group.get("capturable"):
            group["capturable"] = False
    work = replace(session.work, optimizers=optimizers)
    body = DeviceStep(work, torch.device("cpu"), compiled=compiled)
    body.order.copy_(order_of_epoch(len(work.train), 0, 0))
    work.model.train()
    for _ in range(n_steps):
        body.run()
    return body


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        torch.testing.assert_close(second[name], value, rtol=1e-4, atol=1e-6, msg=name)


def test_gates_and_weights_move(tmp_path: Path) -> None:
    session = make_session(tmp_path)
    before = {name: value.clone() for name, value in session.work.model.state_dict().items()}
    run_eagerly(session, 10)
    after = session.work.model.state_dict()
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert any("width" in name for name in moved)
    assert "layers.0.weight" in moved


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_step_that_asks_nothing_of_the_host_is_the_same_step(
    tmp_path: Path, optimizer: str
) -> None:
    asked = {"optimizer": optimizer, "gate_rate": 20.0, "start_after": 0.0, "clip_norm": 0.1}
    expected = run_eagerly(make_session(tmp_path, **asked), 8)
    assert any(bool((t == 1).any()) for name, t in expected.items() if "width" in name)
    body = run_on_device(make_session(tmp_path, **asked), 8)
    assert body.step.item() == 8
    assert_same(expected, collect_tensors(body.work.model, body.work.optimizers))
    assert body.sums[0].item() > 0


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler")
@pytest.mark.filterwarnings(
    "ignore:.*is deprecated:DeprecationWarning", "ignore:.*not be instantiated:DeprecationWarning"
)
def test_compiled_step_is_the_same_step(tmp_path: Path) -> None:
    """From the choice of examples to the penalty it is one graph, without a break."""
    asked = {"gate_rate": 20.0, "start_after": 0.0, "price": "parameters"}
    expected = run_eagerly(make_session(tmp_path, **asked), 4)
    torch._dynamo.utils.counters.clear()
    body = run_on_device(make_session(tmp_path, **asked), 4, compiled=True)
    assert_same(expected, collect_tensors(body.work.model, body.work.optimizers))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("accumulate", [3, 7])
def test_accumulated_parts_make_the_same_step(accumulate: int, tmp_path: Path) -> None:
    """Also where a batch of 60 cannot be cut into even parts."""
    whole = run_eagerly(make_session(tmp_path), 5)
    parts = run_eagerly(make_session(tmp_path, accumulate=accumulate), 5)
    assert_same(whole, parts)


def test_bf16_learns_too(tmp_path: Path) -> None:
    session = make_session(tmp_path, precision="bf16-mixed")
    run_eagerly(session, 10)
    first = session.stepper.sums()[0]
    order = order_of_epoch(len(session.dataset.train), 0, 1)
    session.stepper.begin_epoch(order, 0.0, 0.0)
    for place in range(10):
        session.stepper.advance(place, place)
    assert session.stepper.sums()[0] < first
    weight = session.work.model.get_parameter("layers.0.weight")
    assert weight.dtype == torch.float32


def test_model_without_gates_is_trained_plainly(tmp_path: Path) -> None:
    session = make_session(tmp_path, learn="nothing")
    run_eagerly(session, 5)
    loss, cost = session.stepper.sums()
    assert loss > 0
    assert cost == 0
    assert isinstance(session.work.model, nn.Module)


def test_batches_that_cannot_be_shared_out_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"batch_size is 2; give .* from 3 \(processes"):
        make_session(tmp_path, batch_size=2, accumulate=3)


def test_graph_of_several_steps_fits_an_epoch() -> None:
    assert [largest_divisor(n, 20) for n in (440, 480, 7, 23, 1)] == [20, 20, 7, 1, 1]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_step_that_asks_nothing_of_the_host_goes_on_behind_a_cut(
    tmp_path: Path, optimizer: str
) -> None:
    """What a GPU captures anew, uncaptured: warmed up, put back, and then the same steps."""
    asked = {"optimizer": optimizer, "budget": ("parameters=50%",), "gate_rate": None}
    losses: list[list[float]] = []
    for shrinks in (False, True):
        session = make_session(tmp_path, **asked)
        gates = session.work.gate_optimizer
        assert gates is not None
        made = make_optimizers(session.work.model, session.settings.optimizer, gates)
        work = replace(session.work, optimizers=made)
        body = DeviceStep(work, torch.device("cpu"))
        body.order.copy_(order_of_epoch(len(work.train), 0, 0))
        work.model.train()
        seen: list[float] = []
        for place in range(9):
            if place == 4:
                gates.finish()
            if place == 4 and shrinks:
                al.shrink_(work.model, *made)
                kept = [tensor.clone() for tensor in _state(body)]
                body.run()
                _give_back(body, kept)
                gates.accept_gates()
            body.run()
            gates.advance()
            seen.append(body.sums[0].item())
        losses.append(seen)
        shape = session.work.model.get_parameter("layers.0.weight").shape
        assert (shape[0] < 20) == shrinks
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def make_parameter(*gradient: float) -> nn.Parameter:
    parameter = nn.Parameter(torch.zeros(len(gradient)))
    parameter.grad = torch.tensor(gradient)
    return parameter


def limit(weights: list[nn.Parameter], gate: nn.Parameter, *limits: float | None) -> None:
    optimizers = torch.optim.SGD(weights, lr=1.0), torch.optim.SGD([gate], lr=1.0)
    clip_gradients_(optimizers, *limits)


def test_weights_are_scaled_together_and_gates_cut_one_by_one() -> None:
    weights = [make_parameter(3.0, 0.0), make_parameter(0.0, 4.0)]
    gate = make_parameter(-3.0, 0.5)
    limit(weights, gate, 1.0, 2.0)
    values = [value for weight in weights for value in weight.grad.tolist()]  # pyright: ignore
    assert values == pytest.approx([0.6, 0.0, 0.0, 0.8], rel=1e-5)
    assert gate.grad.tolist() == [-2.0, 0.5]  # pyright: ignore


def test_small_gradients_and_no_limits_change_nothing() -> None:
    weights, gate = [make_parameter(3.0, 4.0)], make_parameter(9.0)
    limit(weights, gate, 5.1, None)
    limit(weights, gate, None, 10.0)
    assert weights[0].grad.tolist() == [3.0, 4.0]  # pyright: ignore
    assert gate.grad.tolist() == [9.0]  # pyright: ignore


SHAPES = [(300, 200), (7,), (40, 3, 5, 5), (500, 100)]


def make_optimizer(**options: float) -> torch.optim.SGD:
    generator = torch.Generator().manual_seed(0)
    weights = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]
    rate = torch.tensor(0.1)
    return torch.optim.SGD(weights, lr=rate, weight_decay=1e-2, fused=True, **options)


def set_gradients(optimizer: torch.optim.SGD, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights: list[Tensor] = optimizer.param_groups[0]["params"]
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=generator)
    return weights


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_pieces_are_updated_as_the_whole(momentum: float) -> None:
    whole, cut = make_optimizer(momentum=momentum), make_optimizer(momentum=momentum)
    for seed in range(4):
        for optimizer in (whole, cut):
            set_gradients(optimizer, seed)
            vars(optimizer)["grad_scale"] = torch.tensor(1.0 + seed)
        whole.step()
        update_(cut)
    first, second = set_gradients(whole, 0), set_gradients(cut, 0)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


def test_only_large_tensors_are_cut_and_nothing_is_copied() -> None:
    tensors = [torch.zeros(shape) for shape in SHAPES]
    others = [torch.ones(shape) for shape in SHAPES]
    pieces, matching = cut_evenly(tensors, others)
    assert [p.shape for p in pieces] == [p.shape for p in matching]
    assert sum(p.numel() for p in pieces) == sum(t.numel() for t in tensors)
    assert max(p.numel() for p in pieces) == 1 << 14
    assert any(p is tensors[1] for p in pieces)
    for piece in pieces:
        piece.add_(1)
    assert all(bool((tensor == 1).all()) for tensor in tensors)


def test_a_tensor_that_does_not_lie_in_one_row_stays_whole() -> None:
    tensor = torch.zeros(200, 300).T
    (pieces,) = cut_evenly([tensor])
    assert len(pieces) == 1
    assert pieces[0] is tensor


SETTINGS = OptimizerSettings(momentum=0.8, weight_decay=0.03)


def gated() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    return al.add_gates(net, torch.ones(1, 3))


def test_gates_have_neither_momentum_nor_decay() -> None:
    model = gated()
    weights, gates = (o.param_groups[0] for o in make_optimizers(model, SETTINGS))
    assert (weights["momentum"], weights["weight_decay"]) == (0.8, 0.03)
    assert (gates["momentum"], gates["weight_decay"]) == (0, 0)
    assert [p.numel() for p in weights["params"]] == [12, 4, 8, 2]
    assert sorted(p.numel() for p in gates["params"]) == [1, 4]


@pytest.mark.parametrize("make", [gated, lambda: nn.Linear(3, 2)])
def test_adam_is_for_weights_alone(make: type[nn.Module]) -> None:
    weights, *gates = make_optimizers(make(), replace(SETTINGS, optimizer="adam"))
    assert isinstance(weights, torch.optim.AdamW)
    assert weights.param_groups[0]["weight_decay"] == 0.03
    assert all(isinstance(optimizer, torch.optim.SGD) for optimizer in gates)


def test_rates_worked_by_hand() -> None:
    """Ten steps: two of warm-up, gates from the third to the sixth, then a cosine to zero."""
    schedule = Schedule(
        n_steps=10, n_warmup=2, gates_from=2, gates_until=6, learning_rate=0.4, gate_rate=3.0
    )
    optimizers = make_optimizers(gated(), SETTINGS)
    found: list[tuple[float, float]] = []
    for step in range(10):
        set_rates_(optimizers, schedule, step)
        weights, gates = (o.param_groups[0]["lr"] for o in optimizers)
        found.append((weights, gates))
    assert [rate for rate, _ in found[:3]] == pytest.approx([0.2, 0.4, 0.4])
    assert found[6][0] == pytest.approx(0.2)
    assert found[9][0] == pytest.approx(0.2 * (1 + torch.tensor(7 * torch.pi / 8).cos().item()))
    assert [rate for _, rate in found] == [0, 0, 3, 3, 3, 3, 0, 0, 0, 0]


def test_behind_a_cut_an_ordinary_step_tries_no_convolutions_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    make_session(tmp_path).stepper.renew()
    assert not torch.backends.cudnn.benchmark
