"""Measure how fast a run's compact model is beside the network that the run began with."""

from dataclasses import asdict
from pathlib import Path

import torch
from torch import nn

from archlearn.data.dataset import Dataset
from archlearn.speed import Speed, compare_speed
from archlearn.training.initial_model import start_network
from archlearn.training.metrics import Score, evaluate, in_format_of
from archlearn.training.objectives import objective_of
from archlearn.training.run_directory import SPEED, write_json
from archlearn.training.settings import RunSettings


def measure_run(
    folder: Path, compact: nn.Module, settings: RunSettings, dataset: Dataset
) -> tuple[list[Speed], Score | None]:
    """Return times and memory before and after, and the score that the network began with.

    All of it is written into the run's folder, where the report finds it. A network that began
    untrained has no score.
    """
    original = start_network(settings, dataset)
    objective = objective_of(dataset)
    score = evaluate(original, dataset.test, objective) if settings.start_from else None
    example = in_format_of(original, objective.inputs(dataset.train.inputs[:64]))
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    rows: list[Speed] = []
    for device in devices:
        rows += compare_speed(original, compact, example, device=device)
    before = None if score is None else score.error if score.accuracy is None else score.accuracy
    write_json(folder / SPEED, {"rows": [asdict(row) for row in rows], "score_before": before})
    return rows, score
