"""Learn, shrink and compact many networks on a GPU, and compare them in float64.

The networks of `tests/zoo`, and the real models of `benchmarks/zoo/models.toml` from transformers,
torchvision and timm. Each runs in a process of its own under a limit of time. Rows are appended to
`--out` as they come; those of this commit and device are not run again.

    python -m benchmarks.gpu_sweep --jobs 14 --out results/gpu.jsonl --page results/gpu.md
"""

import argparse
import json
import multiprocessing
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path

import torch

from benchmarks.circumstances import as_markdown, describe
from benchmarks.zoo.measure import Row
from benchmarks.zoo.on_device import FAMILIES, SHARE, STEPS, list_names, send_row

PACKAGES = ("transformers", "torchvision", "timm")
MEANINGS = {
    "exact": "smaller, and the same function to 1e-10 of the largest output",
    "refused": "an error of archlearn's own",
    "crash": "any other error, or the process ended",
    "wrong": "another function",
    "too slow": "not done within the limit of time",
    "fails by itself": "the untouched model does not run on this device in float64",
    "not installed": "a package is missing",
}
_context = multiprocessing.get_context("forkserver")


def run_apart(name: str, device: str, limit: float) -> Row:
    """Return the row of a network that is measured in a process of its own."""
    receiver, sender = _context.Pipe(duplex=False)
    process = _context.Process(target=send_row, args=(sender, name, device))
    process.start()
    sender.close()
    row: Row = {"model": name, "device": device, "seconds": limit}
    try:
        if receiver.poll(limit):
            return receiver.recv()
        return {**row, "result": "too slow", "said": f"not done after {limit:.0f} s"}
    except EOFError:
        process.join()
        return {**row, "result": "crash", "said": f"the process ended with {process.exitcode}"}
    finally:
        process.kill()
        process.join()


def run_all(names: list[str], options: argparse.Namespace, commit: str) -> list[Row]:
    """Return the rows of all networks; those of this commit and device are in the file."""
    rows = _read(options.out)
    rows = [row for row in rows if (row["commit"], row["device"]) == (commit, options.device)]
    known = {row["model"] for row in rows}
    todo = [name for name in names if name not in known]
    counts = Counter(row["result"] for row in rows)

    def run(name: str) -> Row:
        row = run_apart(name, options.device, options.limit) | {"commit": commit}
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            with options.out.open("a") as file:
                file.write(json.dumps(row) + "\n")
        counts[row["result"]] += 1
        said = ", ".join(f"{n} {result}" for result, n in counts.items())
        print(f"{counts.total()}/{len(names)} {name}: {row['result']} ({said})", file=sys.stderr)
        return row

    with ThreadPoolExecutor(options.jobs) as pool:
        rows += pool.map(run, todo)
    return [row for row in rows if row["model"] in names]


def _read(out: Path | None) -> list[Row]:
    lines = out.read_text().splitlines() if out and out.exists() else []
    return [json.loads(line) for line in lines]


def find_faults(rows: list[Row]) -> list[Row]:
    """Return the rows that must not be: crashes, wrong ones, refused though the CPU takes them."""
    bad = ("crash", "wrong", "too slow")
    return [row for row in rows if row["result"] in bad or row.get("cpu") == "exact"]


def page(rows: list[Row], names: list[str], circumstances: dict[str, str]) -> str:
    """Return the page: one sentence, the counts of each family, and all that is not exact."""
    counts = Counter(row["result"] for row in rows)
    faults = find_faults(rows)
    head = ", ".join(f"{counts[result]} {result}" for result in MEANINGS if counts[result])
    missing = len(names) - len(rows)
    table = [f"| | {' | '.join(MEANINGS)} |", f"|---|{'--:|' * len(MEANINGS)}"]
    for family in FAMILIES:
        of_family = [row["result"] for row in rows if row["model"].startswith(f"{family}/")]
        cells = [str(of_family.count(result)) for result in MEANINGS]
        table.append(f"| {family} | {' | '.join(cells)} |")
    lines = [f"* {result}: {text}." for result, text in MEANINGS.items()]
    worst = max((row["difference"] for row in rows if "difference" in row), default=0.0)
    return "\n\n".join(
        [
            f"# {len(names)} networks on {circumstances['hardware']}",
            f"{head}; {missing} not measured; {len(faults)} faults (crash, wrong, too slow, or "
            f"refused where the CPU takes it). Largest difference {worst:.1e}.",
            f"Written by {as_markdown(circumstances)}",
            f"Each network gets gates, learns for {STEPS} steps of AdamW to {SHARE} of its "
            "multiply-adds (to half of what can go, where that is out of reach), is shrunk and "
            "compacted; outputs are compared in float64.",
            "\n".join(table),
            "\n".join(lines),
            *(_list(rows, result) for result in MEANINGS if result != "exact" and counts[result]),
        ]
    )


def _list(rows: list[Row], result: str) -> str:
    found = [row for row in rows if row["result"] == result]
    lines = [f"## {result}: {len(found)}", ""]
    for row in found:
        on_cpu = f" (on the CPU: {row['cpu']})" if "cpu" in row else ""
        lines.append(f"* {row['model']}{on_cpu}: {row.get('said', row.get('difference'))}")
    return "\n".join(lines)


def main() -> None:
    options = _options()
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        sys.exit("torch finds no GPU here; try --device cpu")
    _context.set_forkserver_preload(["benchmarks.zoo.preload", "benchmarks.zoo.on_device"])
    names = [name for name in list_names() if fnmatch(name, options.only)]
    circumstances = describe(*PACKAGES, device=options.device)
    rows = run_all(names, options, circumstances["commit"])
    text = page(rows, names, circumstances)
    print(text)
    if options.page:
        options.page.write_text(text + "\n")
    if find_faults(rows):
        sys.exit(1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu_sweep", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--device", default="cuda", help="where networks run")
    parser.add_argument("--only", default="*", metavar="GLOB", help="names, such as 'hf/*'")
    parser.add_argument("--jobs", type=int, default=14, help="networks measured at the same time")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for a network")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON lines, to go on from")
    parser.add_argument("--page", type=Path, metavar="FILE", help="where to write the page")
    return parser.parse_args()


if __name__ == "__main__":
    main()
