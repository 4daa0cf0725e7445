"""The files of a run's folder as the documentation names them, and their lines."""

import json
from pathlib import Path
from typing import Any

CONFIG, METRICS, GATES = "config.toml", "metrics.jsonl", "gates.jsonl"
SUMMARY, COMPACT, LOCK = "summary.json", "compact.safetensors", "run.lock"
LATEST, PREVIOUS = "checkpoint.safetensors", "checkpoint.previous.safetensors"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file of JSON lines, of which the last may be torn."""
    rows: list[dict[str, Any]] = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows
