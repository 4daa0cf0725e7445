"""Other people's gates and penalties in the captured step: what an ordinary step learns."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from archlearn_cli.data import no_progress
from archlearn_cli.models import build_network
from archlearn_cli.training import RunSettings, Session, load_dataset, override
from archlearn_cli.training.checkpoint import collect_tensors, order_of_epoch
from archlearn_cli.training.cuda_graph import CapturedStepper, make_stepper
from archlearn_cli.training.hardware import start_fabric
from archlearn_cli.training.run_setup import open_session
from archlearn_cli.training.train_step import EagerStepper, make_optimizers
from archlearn_paper.baselines.learnt_diagonals import add_diagonals, scaled_layers
from archlearn_paper.baselines.torch_pruning_methods import learn_sparse_groups
from archlearn_paper.experiment import Run
from archlearn_paper.parallel_runs import train_side_by_side

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no GPU")
EXAMPLE = torch.zeros(2, 1, 28, 28)
ASKED: dict[str, Any] = {
    "model": "lenet",
    "data": "digits:28",
    "epochs": 3,
    "batch_size": 60,
    "limit": 720,
    "learn": "nothing",
    "learning_rate": 0.02,
    "width_cost": 1e-3,
    "start_after": 0.0,
    "gate_rate": 0.5,
}


def fresh() -> nn.Module:
    torch.manual_seed(0)
    return build_network("lenet", (1, 28, 28), 10)


def with_l0() -> nn.Module:
    return add_diagonals(fresh(), EXAMPLE, 1e-3, "l0")


def gates_of(session: Session) -> Tensor:
    layers = scaled_layers(session.work.model).values()
    return torch.cat([layer.diagonal.detach().cpu() for layer in layers])


def with_diagonals() -> nn.Module:
    return add_diagonals(fresh(), EXAMPLE, 1e-3)


def with_sparse_groups() -> nn.Module:
    pytest.importorskip("torch_pruning")
    return learn_sparse_groups(fresh(), EXAMPLE, 1e-3)


RIDERS = [with_diagonals, with_sparse_groups]


class Asking(nn.Module):
    """A network that asks the host for a number, which no CUDA graph can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.network = fresh()

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.network(x)
        return outputs * 1.0 if self.training and outputs.sum().item() > -1e30 else outputs


def make_session(network: nn.Module, **given: object) -> Session:
    settings = override(RunSettings(), ASKED | given)
    fabric = start_fabric(settings.hardware)
    dataset = load_dataset(settings, no_progress)
    return open_session(settings, Path("nowhere"), fabric, dataset, network)


def run_epoch(session: Session, epoch: int = 0) -> dict[str, Tensor]:
    order = order_of_epoch(len(session.dataset.train), 0, 0)
    session.stepper.begin_epoch(order.to(session.fabric.device), 0.0, 0.0)
    place = 0
    while place < session.steps_per_epoch:
        place += session.stepper.advance(place, epoch * session.steps_per_epoch + place)
    tensors = collect_tensors(session.work.model, session.work.optimizers)
    return {name: tensor.detach().cpu().clone() for name, tensor in tensors.items()}


def assert_same_epoch(ordinary: Session, captured: Session) -> None:
    """Up to TF32: products there have ten bits."""
    expected, found = run_epoch(ordinary), run_epoch(captured)
    for name, tensor in expected.items():
        if name in found and tensor.is_floating_point():
            torch.testing.assert_close(found[name], tensor, rtol=0.05, atol=0.02, msg=name)
    assert captured.stepper.sums() == pytest.approx(ordinary.stepper.sums(), rel=0.02)


@on_gpu
@pytest.mark.parametrize("make", RIDERS)
def test_a_captured_epoch_with_a_penalty_is_the_same_epoch(make: Callable[[], nn.Module]) -> None:
    ordinary = make_session(make(), capture="no")
    captured = make_session(make())
    assert isinstance(ordinary.stepper, EagerStepper)
    assert isinstance(captured.stepper, CapturedStepper)
    assert_same_epoch(ordinary, captured)


@on_gpu
@pytest.mark.parametrize("make", RIDERS)
def test_the_penalty_is_there_after_capture(make: Callable[[], nn.Module]) -> None:
    """Without it the same steps lead elsewhere."""
    session = make_session(make())
    with_penalty = run_epoch(session)
    bare = make()
    bare._penalty[0].strength = 0.0  # pyright: ignore
    without = run_epoch(make_session(bare))
    gaps = [(with_penalty[n] - t).abs().max() for n, t in without.items() if t.is_floating_point()]
    assert max(gaps) > 1e-3


@on_gpu
def test_captured_drawn_gates_learn_as_ordinary_ones_do() -> None:
    ordinary, captured = make_session(with_l0(), capture="no"), make_session(with_l0())
    assert isinstance(captured.stepper, CapturedStepper)
    start = gates_of(captured)
    losses: list[list[float]] = []
    for session in (ordinary, captured):
        for epoch in range(3):
            run_epoch(session, epoch)
        losses.append([total / session.steps_per_epoch for total in session.stepper.sums()])
        gates = gates_of(session)
        assert bool(gates.isfinite().all())
        assert float((gates - start).abs().mean()) > 1e-3
    # The draws are others, so only their mean is the same.
    assert losses[1][0] == pytest.approx(losses[0][0], rel=0.3, abs=0.1)
    assert losses[1][1] == pytest.approx(losses[0][1], rel=0.05)


@on_gpu
@pytest.mark.parametrize(("make", "is_drawn"), [(with_l0, True), (with_diagonals, False)])
def test_drawn_gates_are_drawn_anew_at_every_replay(
    make: Callable[[], nn.Module], is_drawn: bool
) -> None:
    """With nothing learnt, the losses of two equal epochs differ by the draws alone."""
    session = make_session(make(), learning_rate=1e-30, gate_rate=1e-30, weight_decay=0.0)
    assert isinstance(session.stepper, CapturedStepper)
    sums: list[float] = []
    for epoch in range(2):
        run_epoch(session, epoch)
        sums.append(session.stepper.sums()[0])
    gap = abs(sums[0] - sums[1]) / sums[0]
    assert (gap > 1e-4) if is_drawn else (gap < 1e-6)


@on_gpu
def test_all_kinds_learn_side_by_side() -> None:
    settings = override(RunSettings(), ASKED | {"epochs": 12, "learning_rate": 0.1})
    runs = [
        Run(row=make.__name__, settings=replace(settings, seed=seed), network=make())
        for seed in range(2)
        for make in (with_l0, *RIDERS, fresh)
    ]
    for outcome in train_side_by_side(runs):
        assert outcome.row.train_loss < 0.5, outcome.row.row


@on_gpu
def test_what_cannot_be_captured_is_learnt_call_by_call(caplog: pytest.LogCaptureFixture) -> None:
    ordinary = make_session(Asking(), capture="no")
    with caplog.at_level(logging.WARNING):
        refused = make_session(Asking())
    assert isinstance(refused.stepper, EagerStepper)
    assert "the step cannot be captured" in caplog.text
    assert_same_epoch(ordinary, refused)


def test_an_attempt_to_capture_leaves_no_gradients(caplog: pytest.LogCaptureFixture) -> None:
    """The first ordinary step would add its own to them."""
    if torch.cuda.is_available():
        pytest.skip("here the attempt would succeed")
    session = make_session(fresh(), accelerator="cpu")
    model = session.work.model
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizers = make_optimizers(model, session.settings.optimizer, on_device=True)
    work = replace(session.work, optimizers=optimizers)
    with caplog.at_level(logging.WARNING):
        work, stepper = make_stepper(work, session.fabric, session.settings)
    assert isinstance(stepper, EagerStepper)
    assert "the step cannot be captured" in caplog.text
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not work.optimizers[0].defaults["fused"]
