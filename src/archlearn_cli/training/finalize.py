"""End of a run: compact, test once, save, and write the summary."""

import copy
import json
import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from archlearn.costs import Costs
from archlearn.errors import FileError, InputError
from archlearn.gating.cost_counter import count_layer_costs
from archlearn.gating.gate_container import find_container
from archlearn.module_utils import evaluating
from archlearn.optim.lost_training import warn_of_lost_training
from archlearn.serialization import save
from archlearn.surgery.architecture import Architecture, read_architecture
from archlearn.surgery.compaction import compact
from archlearn.surgery.planning import plan
from archlearn.verification.speed import Speed, compare_speed
from archlearn_cli.data.dataset import Dataset
from archlearn_cli.data.file_cache import METRICS, SPEED, SUMMARY
from archlearn_cli.training.checkpoint import Position, capture_random_states, restore_random_states
from archlearn_cli.training.defaults import loss_of_a_guess
from archlearn_cli.training.hardware import describe_hardware, describe_versions
from archlearn_cli.training.initial_model import start_network
from archlearn_cli.training.metrics import Score, costs_of, evaluate
from archlearn_cli.training.objectives import in_format_of, objective_of
from archlearn_cli.training.run_directory import COMPACT, read_lines, write_json
from archlearn_cli.training.run_setup import Session, gate_network, set_layout_
from archlearn_cli.training.settings import RunSettings
from archlearn_cli.training.train_step import has_gates

logger = logging.getLogger(__name__)

NOTHING_LEARNT = 0.95
"""From this part of a guess's loss on, a network knows nothing."""


def finish(session: Session, position: Position, command: str) -> dict[str, Any]:
    """Write the compact model and the summary of a run, and return the summary.

    The compact model is a plain module in ordinary memory layout on the CPU. The test examples
    are looked at here for the first and only time.
    """
    gates = session.work.gate_optimizer
    if gates is not None:
        gates.finish()
    model = _plain_copy(session)
    small, merged, evidence = _compact(model, session)
    _save(small, session.folder / COMPACT, session)
    if gates is not None and gates.latency is not None:  # it had a budget: for the report
        example, used = in_format_of(session.network, session.example), gates.latency.conditions
        speeds = compare_speed(session.network, small, example, (len(example),), **asdict(used))
        logger.info("latency, measured again: %s", speeds[0])
        write_json(session.folder / SPEED, {"rows": [asdict(speed) for speed in speeds]})
    objective = session.work.objective
    on_device = copy.deepcopy(small).to(session.fabric.device)
    score = evaluate(on_device, session.dataset.test, objective)
    before, after = _describe(session.network, session), _describe(small, session)
    after["bytes"] = (session.folder / COMPACT).stat().st_size
    if has_gates(model):
        after |= _architecture(read_architecture(model))
    rows, dataset = read_lines(session.folder / METRICS), session.dataset
    last, strengths = rows[-1] if rows else {}, session.work.strengths
    numbers = ("mean", "std", "target_mean", "target_std")
    summary = {
        "format": 1,
        "finished": True,
        "name": session.folder.name,
        "model": session.origin,
        "data": session.settings.data,
        "data_source": dataset.source,
        "task": dataset.task,
        "normalisation": {n: getattr(objective, n).reshape(-1).tolist() for n in numbers},
        "before": before,
        "after": after,
        "merged": merged,
        "test_accuracy": score.accuracy,
        "test_error": score.error,
        "test_loss": score.loss,
        "n_test": score.n_examples,
        "n_validation": len(dataset.validation),
        "validation_accuracy": last.get("validation_accuracy"),
        "validation_error": last.get("validation_error"),
        "shrinking": _describe_shrinking(session, rows),
        **evidence,
        "strengths": {}
        if strengths is None
        else asdict(strengths) | {"price": strengths.price.value},
        "command": position.command or command,
        "hardware": describe_hardware(session.fabric, session.settings.hardware.precision),
        "versions": describe_versions(),
        "seed": session.settings.seed,
        "epochs": session.n_epochs,
        "steps": position.step,
        "seconds": round(position.seconds, 3),
        "resumed": position.resumed,
        "files": {"compact": COMPACT},
    }
    losses = [n for row in rows if (n := row["train_loss"]) is not None]
    if gates is not None:
        summary["lost_training"] = warn_of_lost_training(losses)
    write_json(session.folder / SUMMARY, summary)
    guess = loss_of_a_guess(dataset)
    if rows and last["train_loss"] >= NOTHING_LEARNT * guess:
        _warn_of_nothing_learnt(session, last["train_loss"], guess)
    return summary


def check_finish(session: Session) -> None:
    """Compact and save the network as it is before training, and throw the file away.

    What would fail at the end of a run fails here: outputs that are no numbers, or a network that a
    file cannot hold. Random states are left as they are.
    """
    states = capture_random_states()
    model = _plain_copy(session)
    container = find_container(model)
    if container is not None:
        container.budget = None  # nobody expects it to be met yet
    with evaluating(model), torch.no_grad():
        outputs = model(in_format_of(model, session.example))
    if not torch.isfinite(outputs).all():
        raise InputError(
            f"the network {session.origin} gives what is no finite number for the first two "
            "examples, before it is trained; look at its weights and at the size of the inputs"
        )
    small, _, _ = _compact(model, session)
    with tempfile.TemporaryDirectory(dir=session.folder, prefix=".check-") as scratch:
        try:
            _save(small, Path(scratch) / COMPACT, session)
        except FileError as error:
            raise FileError(
                "this run is not begun, for its network could not be saved at the end: "
                f"{error.__cause__ or error}. On the command line forward must be one that can "
                f"be followed; `archlearn inspect {session.settings.model}` says what stands in "
                "the way"
            ) from error
    restore_random_states(states)


def _plain_copy(session: Session) -> nn.Module:
    """Return a copy of the model in ordinary memory layout on the CPU."""
    model = copy.deepcopy(session.work.model).cpu()
    set_layout_(model, torch.contiguous_format)
    return model


def _save(small: nn.Module, path: Path, session: Session) -> None:
    # A model without gates is followed anew, and its forward may ask about shapes.
    gated = has_gates(session.work.model)
    save(small, path, None if gated else in_format_of(small, session.example))


def _warn_of_nothing_learnt(session: Session, loss: float, guess: float) -> None:
    """Say that weights or gates died: the small network is then no result."""
    cheaper = ""
    if has_gates(session.work.model):
        by_budget = session.settings.gates.gate_optimizer == "budget"
        cheaper = " or a larger --budget" if by_budget else " or a lower --width-cost"
    logger.warning(
        "the network has learnt little or nothing: its train loss of %.3g is not clearly below "
        "that of a guess (%.3g). Try more --epochs, another --learning-rate (it was %g)%s",
        loss,
        guess,
        session.settings.optimizer.learning_rate,
        cheaper,
    )


def _compact(model: nn.Module, session: Session) -> tuple[nn.Module, list[str], dict[str, Any]]:
    """Return the compact model, the layers merged away, and plan and certificate."""
    if not has_gates(model):
        return model, [], {"certificate": {}, "plan": ""}
    chosen = plan(model, session.example, pay=session.settings.strengths.pay)
    small = compact(model, plan=chosen)
    certificate = asdict(small.certificate)  # pyright: ignore[reportArgumentType]
    merged = [site for merge in chosen.merges if merge.made for site in merge.sites]
    return small, merged, {"certificate": certificate, "plan": str(chosen)}


def _describe(network: nn.Module, session: Session) -> dict[str, Any]:
    """Return the architecture and costs of a plain network."""
    example = in_format_of(network, session.example)
    described: dict[str, Any] = asdict(costs_of(network, session.example))
    described["layers"] = [
        {"name": name, **asdict(costs.for_one_example(len(example)))}
        for name, costs in count_layer_costs(network, example).items()
    ]
    if session.settings.gates.learn != "nothing" and network is session.network:
        gated = gate_network(network, session.example, session.settings)
        described |= _architecture(read_architecture(gated))
    return described


def _architecture(architecture: Architecture) -> dict[str, Any]:
    return {
        "architecture": str(architecture),
        "widths": [{"name": layer.name, "width": layer.width} for layer in architecture.layers],
    }


def _describe_shrinking(session: Session, lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return how often and in which epochs channels were cut out, and what was computed then.

    "multiply_adds" is the mean over the epochs of what a step computed, as a part of what it
    would have without a cut. "memory_bytes" is what training took at most, and at the end.
    """
    rows = [row for row in lines if "trained" in row and "memory_bytes" in row]
    container = find_container(session.work.model)
    if container is None or not container.n_shrinks or len(rows) < 2:
        return {}
    costs = [row["trained"]["multiply_adds"] for row in rows]
    means = [(before + after) / 2 for before, after in pairwise(costs)]
    return {
        "times": container.n_shrinks,
        "epochs": [epoch for epoch, (a, b) in enumerate(pairwise(costs), 1) if b < a],
        "multiply_adds": round(sum(means) / len(means) / costs[0], 4),
        "memory_bytes": [max(row["memory_bytes"] for row in rows), rows[-1]["memory_bytes"]],
    }


def measure_run(
    folder: Path, compact: nn.Module, settings: RunSettings, dataset: Dataset, split: str = "test"
) -> tuple[tuple[Costs, Costs], list[Speed], Score | None]:
    """Return costs of one example before and after, times and memory, and the score at the start.

    That is None if the run began untrained. Times, memory and a score of test data are written into
    the run's folder, where the report finds them.
    """
    original = start_network(settings, dataset)
    objective = objective_of(dataset)
    examples = getattr(dataset, split)
    score = evaluate(original, examples, objective) if settings.start_from else None
    example = in_format_of(original, objective.inputs(dataset.train.inputs[:64]))
    costs = (costs_of(original, example), costs_of(compact, example))
    rows = compare_speed(original, compact, example, device="cpu")
    if torch.cuda.is_available():
        rows += compare_speed(original, compact, example, device="cuda")
    written: dict[str, Any] = {"rows": [asdict(row) for row in rows]}
    if score is not None and split == "test":
        written["score_before"] = score.error if score.accuracy is None else score.accuracy
    elif (folder / SPEED).is_file():
        written = json.loads((folder / SPEED).read_bytes()) | written
    write_json(folder / SPEED, written)
    return costs, rows, score
