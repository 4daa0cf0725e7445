"""Run folders as the documented format has them, written by hand for the tests of the report."""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

CONFIG = """model = "{model}"
data = "{data}"
task = "{task}"
epochs = {epochs}
batch_size = 125
seed = {seed}

[optimizer]
name = "sgd"
learning_rate = 0.02
momentum = 0.9
weight_decay = 0.0005
warmup_epochs = 1

[gates]
learn = "all"
freeze_for = 0.3
gate_rate = 0.3
width_start = 0.55
depth_start = 0.45

[strengths]
width_cost = {width_cost}
width_binarise = 0.00075
price = "neurons"

[hardware]
accelerator = "cpu"
precision = "32-true"
"""


@dataclass(frozen=True, kw_only=True)
class Story:
    """What happens in a run: who is kept, what is merged, how well it does."""

    name: str = "a"
    model: str = "lenet"
    data: str = "mnist"
    task: str = "classification"
    seed: int = 0
    epochs: int = 12
    width_cost: float = 3e-4
    before: Mapping[str, int]
    after: Mapping[str, int]
    merged: Sequence[str] = ()
    score: float = 0.9932
    test_score: float | None = None
    costs: tuple[tuple[int, int], tuple[int, int]] = ((431080, 2293000), (19115, 402130))


LENET = Story(
    before={"conv1": 20, "conv2": 50, "fc1": 500, "fc2": 10},
    after={"conv1": 11, "conv2": 25, "fc1": 29, "fc2": 10},
)


def write_run(folder: Path, story: Story = LENET, *, finished: bool = True) -> Path:
    """Write a whole folder, or one that stops at half of its epochs."""
    folder.mkdir(parents=True)
    settings = {key: getattr(story, key) for key in ("model", "data", "task", "seed", "epochs")}
    (folder / "config.toml").write_text(CONFIG.format(**settings, width_cost=story.width_cost))
    n_epochs = story.epochs if finished else story.epochs // 2
    gates = [_gates(story, epoch) for epoch in range(n_epochs + 1)]
    rows = [_row(story, record) for record in gates]
    write_lines(folder / "metrics.jsonl", rows)
    write_lines(folder / "gates.jsonl", [asdict(record) for record in gates])
    if finished:
        (folder / "summary.json").write_text(json.dumps(_summary(story), indent=1))
        (folder / "compact.safetensors").write_bytes(bytes(4 * story.costs[1][0]))
    return folder


def write_lines(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write one JSON object a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@dataclass(frozen=True)
class Gates:
    """The gates after one epoch."""

    epoch: int
    width: Mapping[str, Sequence[float]]
    depth: Mapping[str, float]


def _gates(story: Story, epoch: int) -> Gates:
    """Move each gate from its start to its end, at a pace of its own."""
    paces = random.Random(story.seed)
    width: dict[str, list[float]] = {}
    for name, n_before in list(story.before.items())[:-1]:
        n_after = story.after.get(name, n_before)
        ends = [1.0] * n_after + [0.0] * (n_before - n_after)
        moved = [min(1.0, epoch / story.epochs * paces.uniform(0.95, 3)) for _ in ends]
        width[name] = [
            round(0.55 + (end - 0.55) * share, 4) for end, share in zip(ends, moved, strict=True)
        ]
    share = min(1.0, 1.5 * epoch / story.epochs)
    depth = {name: round(0.45 + 0.55 * share, 4) for name in story.merged}
    return Gates(epoch, width, depth)


def _row(story: Story, gates: Gates) -> dict[str, object]:
    values = [g for layer in gates.width.values() for g in layer] + list(gates.depth.values())
    kept = {name: sum(g >= 0.5 for g in layer) for name, layer in gates.width.items()}
    output = list(story.before)[-1]
    share = sum(kept.values()) / sum(list(story.before.values())[:-1])
    epoch = gates.epoch
    return {
        "epoch": epoch,
        "step": 440 * epoch,
        "train_loss": None if epoch == 0 else 2.3 * 0.6**epoch + 0.004,
        "penalty": 0.02 * share,
        "validation_loss": 2.3 * 0.65**epoch + 0.02,
        **_score(story, 1 - 0.5**epoch),
        "widths": {**kept, output: story.before[output]},
        "linear": {name: gate >= 0.5 for name, gate in gates.depth.items()},
        "binarisation_gap": sum(min(g, 1 - g) for g in values) / len(values),
        "binarised_share": sum(min(g, 1 - g) < 0.1 for g in values) / len(values),
        "parameters": round(story.costs[0][0] * share),
        "multiply_adds": round(story.costs[0][1] * share),
        "learning_rate": 0.02,
        "gate_rate": 0.3,
        "seconds": 15.1 * epoch,
    }


def _score(story: Story, progress: float) -> dict[str, object]:
    if story.task == "regression":
        return {"validation_error": 6000 - (6000 - story.score) * progress}
    return {"validation_accuracy": 0.1 + (story.score - 0.101) * progress}


def _summary(story: Story) -> dict[str, object]:
    regression = story.task == "regression"
    tested = story.score if story.test_score is None else story.test_score
    return {
        "format": 1,
        "finished": True,
        "name": story.name,
        "model": story.model,
        "data": story.data,
        "data_source": "IDX files in the cache",
        "task": story.task,
        "normalisation": {
            "mean": [0.1307],
            "std": [0.3081],
            "target_mean": [152.5 if regression else 0.0],
            "target_std": [77.1 if regression else 1.0],
        },
        "before": _standing(story.before, story.costs[0]),
        "after": {**_standing(story.after, story.costs[1]), "bytes": 4 * story.costs[1][0]},
        "merged": list(story.merged),
        "test_accuracy": None if regression else tested,
        "test_error": tested if regression else None,
        "test_loss": 0.021,
        "n_test": 10000,
        "certificate": {
            "difference": 9.54e-07,
            "difference_float64": 3.3e-15,
            "dtype": "float32",
            "n_inputs": 64,
            "tolerance": 1e-4,
            "tolerance_float64": 1e-10,
        },
        "plan": "conv1: keep 11 of 20\nconv2: keep 25 of 50\nfc1: keep 29 of 500",
        "strengths": {"width_cost": story.width_cost},
        "command": f"archlearn learn --model {story.model} --data {story.data}",
        "hardware": {"device": "cpu", "name": "x86_64", "processes": 1, "threads": 2},
        "versions": {"archlearn": "0.1.0", "torch": "2.13.0+cpu", "python": "3.11.2"},
        "seed": story.seed,
        "epochs": story.epochs,
        "steps": 440 * story.epochs,
        "seconds": 181.2,
        "resumed": 0,
        "files": {"compact": "compact.safetensors"},
    }


def _standing(widths: Mapping[str, int], costs: tuple[int, int]) -> dict[str, object]:
    return {
        "architecture": "-".join(str(width) for width in widths.values()),
        "widths": [{"name": name, "width": width} for name, width in widths.items()],
        "parameters": costs[0],
        "multiply_adds": costs[1],
    }
