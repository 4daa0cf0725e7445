"""Adding gates to resnet50 and compacting it, beside Torch-Pruning's build and step.

    python -m benchmarks.resnet50 --out results/resnet50.md

Both take turns in one process on the same network. Half of every group of channels goes. A
certificate (gated and compact model compared on the example and on random images, in float32 and
in float64) has no counterpart in Torch-Pruning. So each turn compacts twice, with certified=False
and with the certificate, and both totals are given; neither is worked out from the other.
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import archlearn as al
from benchmarks.circumstances import as_markdown, describe
from benchmarks.torchvision_sides import build, drop_half_

COLUMNS = ("gates", "surgery", "uncertified", "certified", "torch-pruning")
Times = dict[str, float]


def main() -> None:
    options = _options()
    if options.threads:
        torch.set_num_threads(options.threads)
    rows = [measure(size, options.repeats, options.device) for size in options.sizes]
    circumstances = describe("torchvision", "torch-pruning", device=options.device)
    text = report(rows, circumstances, options.repeats)
    print(text)
    options.out.write_text(text)
    found = {"circumstances": circumstances, "repeats": options.repeats, "rows": rows}
    options.out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")


def measure(size: int, repeats: int, device: str) -> dict[str, Any]:
    """Return the median seconds of each side and part, for a batch of one image."""
    net = build("resnet50", dtype=torch.float32, device=device)
    images = torch.randn(1, 3, size, size, device=device)
    turns: list[Times] = []
    for _ in range(repeats + 1):
        turns.append({**_ours(net, images), "torch-pruning": _theirs(net, images)})
    turns = turns[1:]  # the first turn warms both up
    medians = {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
    return {"size": size, "seconds": medians, **_ratios(turns), "turns": turns}


def report(rows: list[dict[str, Any]], circumstances: dict[str, str], repeats: int) -> str:
    """Return the rows as a Markdown page."""
    lines = [
        "# resnet50: adding gates and compacting, beside Torch-Pruning",
        "",
        f"Written by {as_markdown(circumstances)}",
        f"Medians of {repeats} turns, in seconds; float32, a batch of one image, half of every",
        "group dropped. `gates` is `add_gates`, `surgery` is `compact(model, certified=False)`;",
        "`with certificate` is `add_gates` + `compact(model)`, a call of its own in the same turn.",
        "Ratios to Torch-Pruning are medians of those within a turn.",
        "",
        *table(rows),
    ]
    return "\n".join(lines) + "\n"


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of the table."""
    lines = [
        "| image | gates | surgery | gates + surgery | with certificate | Torch-Pruning | "
        "gates + surgery / Torch-Pruning | with certificate / Torch-Pruning |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        seconds = " | ".join(f"{row['seconds'][name]:.3f}" for name in COLUMNS)
        ratios = f"{row['ratio_uncertified']:.2f} | {row['ratio_certified']:.2f}"
        lines.append(f"| {row['size']} px | {seconds} | {ratios} |")
    return lines


def _ratios(turns: list[Times]) -> Times:
    def ratio(side: str) -> float:
        return statistics.median(turn[side] / turn["torch-pruning"] for turn in turns)

    return {"ratio_uncertified": ratio("uncertified"), "ratio_certified": ratio("certified")}


def _ours(net: nn.Module, images: Tensor) -> Times:
    gates, gated = _timed(images, lambda: al.add_gates(net, images))
    drop_half_(gated, seed=1)
    surgery, _ = _timed(images, lambda: al.compact(gated, certified=False))
    certified, _ = _timed(images, lambda: al.compact(gated))
    return {
        "gates": gates,
        "surgery": surgery,
        "uncertified": gates + surgery,
        "certified": gates + certified,
    }


def _theirs(net: nn.Module, images: Tensor) -> float:
    import torch_pruning as tp

    victim: Any = copy.deepcopy(net)

    def prune() -> None:
        pruner = tp.pruner.MagnitudePruner(
            victim,
            images,
            importance=tp.importance.GroupMagnitudeImportance(),
            pruning_ratio=0.5,
            ignored_layers=[victim.fc],
        )
        pruner.step()

    return _timed(images, prune)[0]


def _timed(images: Tensor, call: Callable[[], Any]) -> tuple[float, Any]:
    _wait(images)
    start = time.perf_counter()
    made = call()
    _wait(images)
    return time.perf_counter() - start, made


def _wait(images: Tensor) -> None:
    if images.is_cuda:
        torch.cuda.synchronize(images.device)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=[64, 224], help="of the image")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=0, help="left out: as torch has it")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("results/resnet50.md"))
    return parser.parse_args()


if __name__ == "__main__":
    main()
