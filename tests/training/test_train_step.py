"""All ways to do a step do the same step."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from archlearn.data.downloads import no_progress
from archlearn.training.checkpoint import collect_tensors, order_of_epoch
from archlearn.training.config import override
from archlearn.training.cuda_graph import DeviceStep, largest_divisor
from archlearn.training.run_setup import Session, prepare
from archlearn.training.settings import RunSettings
from archlearn.training.train_step import make_optimisers

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
    return collect_tensors(session.work.model, session.work.optimisers)


def run_on_device(session: Session, n_steps: int, *, compiled: bool = False) -> DeviceStep:
    """Do what a GPU captures, uncaptured and on the CPU."""
    optimisers = make_optimisers(session.work.model, session.settings.optimiser, on_device=True)
    for group in optimisers[0].param_groups:
        if group.get("capturable"):
            group["capturable"] = False
    work = replace(session.work, optimisers=optimisers)
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


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_step_that_asks_nothing_of_the_host_is_the_same_step(
    tmp_path: Path, optimiser: str
) -> None:
    asked = {"optimiser": optimiser, "gate_rate": 20.0, "start_after": 0.0, "clip_norm": 0.1}
    expected = run_eagerly(make_session(tmp_path, **asked), 8)
    assert any(bool((t == 1).any()) for name, t in expected.items() if "width" in name)
    body = run_on_device(make_session(tmp_path, **asked), 8)
    assert body.step.item() == 8
    assert_same(expected, collect_tensors(body.work.model, body.work.optimisers))
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
    assert_same(expected, collect_tensors(body.work.model, body.work.optimisers))
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
    with pytest.raises(ValueError, match=r"batches of 2 were asked for.*choose from 3 to"):
        make_session(tmp_path, batch_size=2, accumulate=3)


def test_graph_of_several_steps_fits_an_epoch() -> None:
    assert [largest_divisor(n, 20) for n in (440, 480, 7, 23, 1)] == [20, 20, 7, 1, 1]
