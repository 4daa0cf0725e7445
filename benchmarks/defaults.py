"""The same defaults on several data sets, with and without architecture learning.

Not part of `make benchmark`: it trains fourteen networks, about an hour on two cores. A run that
is finished is not repeated; one that was stopped is resumed.

    python -m benchmarks.defaults --runs runs/defaults --out results/defaults.md
"""

import argparse
import json
from pathlib import Path
from typing import Any

from archlearn_cli.data.file_cache import CONFIG, SUMMARY
from archlearn_cli.training.callbacks import SilentCallback
from archlearn_cli.training.run import Audience, learn, resume
from archlearn_cli.training.settings import RunSettings, override
from archlearn_paper.results import find_commit

SUBJECTS = (
    ("mlp", "digits"),
    ("mlp", "diabetes"),
    ("mlp", "mnist"),
    ("mlp", "fashion-mnist"),
    ("lenet", "mnist"),
    ("lenet", "fashion-mnist"),
    ("lenet", "digits:28"),
)
COMMAND = "python -m benchmarks.defaults"


def run(model: str, data: str, what: str, folder: Path) -> dict[str, Any]:
    summary = folder / SUMMARY
    audience = Audience(observer=SilentCallback(), command=COMMAND)
    if not summary.exists() and (folder / CONFIG).exists():
        resume(folder, audience=audience)
    elif not summary.exists():
        asked = {"model": model, "data": data, "learn": what, "threads": 1}
        asked |= {"gate_optimizer": "penalty"} if what != "nothing" else {}
        learn(override(RunSettings(), asked), folder, audience)
    return json.loads(summary.read_text())


def score(summary: dict[str, Any]) -> str:
    if summary["test_accuracy"] is not None:
        return f"{summary['test_accuracy']:.2%}"
    return f"squared error {summary['test_error']:.0f}"


def row(model: str, data: str, learnt: dict[str, Any], plain: dict[str, Any]) -> str:
    before, after = learnt["before"], learnt["after"]
    cells = [
        f"{model} on {data}",
        before["architecture"],
        f"{before['parameters']:,}",
        score(plain),
        after["architecture"],
        f"{after['parameters']:,}",
        score(learnt),
        str(learnt["epochs"]),
        f"{learnt['strengths']['width_cost']:.1e}",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/defaults"))
    parser.add_argument("--models", nargs="*", default=["mlp", "lenet"])
    parser.add_argument("--out", type=Path, default=Path("results/defaults.md"))
    asked = parser.parse_args()
    rows: list[str] = []
    for model, data in (subject for subject in SUBJECTS if subject[0] in asked.models):
        name = f"{model}-{data.replace(':', '-')}"
        results = [
            run(model, data, what, asked.runs / f"{name}-{what}") for what in ("all", "nothing")
        ]
        rows.append(row(model, data, *results))
        print(rows[-1], flush=True)
    head = (
        f"Written by `{COMMAND}`: one run each, seed 0, every setting left at its default; "
        f"commit {find_commit()}.\n\n"
        "| what | before | parameters | trained plainly | after | parameters | learnt | epochs "
        "| width cost |\n|---|---|---|---|---|---|---|---|---|\n"
    )
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(head + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
