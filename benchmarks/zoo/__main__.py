"""Compact the models of the zoo, and say which are exact and which are refused.

Each model and side runs in a process of its own under a limit of time and of memory. With `--out`,
rows are appended to a file as they come, what is in the file is not run again, and the page is
written beside it.

    python -m benchmarks.zoo --sides archlearn torch-pruning --jobs 2 --out results/zoo.jsonl
"""

import argparse
import json
import multiprocessing
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.circumstances import describe
from benchmarks.zoo.catalogue import read_entries
from benchmarks.zoo.measure import SIDES, Row, send_row
from benchmarks.zoo.page import matrix, page, table

PACKAGES = (
    "torchvision", "transformers", "diffusers", "segmentation-models-pytorch", "timm",
    "torch-geometric", "rtdl-revisiting-models", "pytorch-tabnet", "ultralytics", "torch-pruning",
)  # fmt: skip
_context = multiprocessing.get_context("forkserver")


def main() -> None:
    options = _options()
    _context.set_forkserver_preload(["benchmarks.zoo.preload"])
    names = [name for name in read_entries() if fnmatch(name, options.only)]
    rows = _read(options.out) if options.out else []
    done = {(row["model"], row["side"]) for row in rows}
    todo = [(name, side) for name in names for side in options.sides if (name, side) not in done]
    circumstances = describe(*PACKAGES)

    def run(number: int, name: str, side: str) -> Row:
        row = _in_own_process(name, side, options) | {"commit": circumstances["commit"]}
        if options.out:
            _append(options.out, row)
        said = "" if row["result"] in ("exact", "runs", "no heads") else row.get("said", "")
        print(f"{number}/{len(todo)} {name} {side}: {row['result']} {said}"[:240], file=sys.stderr)
        return row

    with ThreadPoolExecutor(options.jobs) as pool:
        rows += pool.map(lambda item: run(item[0], *item[1]), enumerate(todo, start=1))
    print(table(rows, names))
    if options.out:
        text = page(rows, list(read_entries()), circumstances)
        options.out.with_suffix(".md").write_text(text)
    if options.matrix:
        options.matrix.write_text(matrix(rows, list(read_entries())))


def _in_own_process(name: str, side: str, options: argparse.Namespace) -> Row:
    receiver, sender = _context.Pipe(duplex=False)
    given = (sender, name, side, options.memory, options.limit)
    process = _context.Process(target=send_row, args=given)
    process.start()
    sender.close()
    failed: Row = {"model": name, "side": side, "result": "crashed"}
    try:
        row = receiver.recv()
        process.join(5)
        return row
    except EOFError:
        process.join()
        if process.exitcode == -signal.SIGXCPU:
            return {**failed, "result": "too slow", "said": f"not done after {options.limit} s"}
        return {**failed, "said": f"the process ended with {process.exitcode}"}
    finally:
        process.kill()
        process.join()


def _read(out: Path) -> list[Row]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def _append(out: Path, row: Row) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    with out.open("a") as file:
        file.write(json.dumps(row) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.zoo", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--only", default="*", metavar="GLOB", help="names of models, such as 'hf/*'"
    )
    parser.add_argument(
        "--sides", nargs="+", choices=SIDES, default=["archlearn"], help="who compacts the models"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="JSON lines; the page is beside it"
    )
    parser.add_argument(
        "--matrix", type=Path, metavar="FILE", help="a page of model families, and what is exact"
    )
    parser.add_argument("--jobs", type=int, default=1, help="models measured at the same time")
    parser.add_argument(
        "--limit", type=int, default=300, help="seconds of a processor for a model and side"
    )
    parser.add_argument("--memory", type=float, default=12.0, help="GiB for a model and side")
    return parser.parse_args()


if __name__ == "__main__":
    main()
