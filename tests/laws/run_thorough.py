"""Every law on many examples, over many processes: what `make laws` runs.

    python tests/laws/run_thorough.py --examples 10000 --workers 16 --out results/laws.md

Examples are drawn anew each time (`--seed` repeats a run) and are not shrunk: a failure shows the
program that broke the law, which is plain data and can be pasted into a test. One line a law, and
exit status 1 if any law was broken. It needs torch, hypothesis and this package, but not pytest:
on a machine without a network, put copies of hypothesis, sortedcontainers, attrs, jaxtyping and
wadler-lindig into a folder and name that in PYTHONPATH beside `src`.
"""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from benchmarks.circumstances import describe
from tests.laws import chains, checking, weights
from tests.laws.networks import HEADS, NETWORKS, STREAMS
from tests.laws.pages import Outcome, write_page
from tests.laws.programs import gates

ON_NETWORKS: dict[str, Callable[..., None]] = {
    "compact": checking.check_compact,
    "twice": checking.check_twice,
    "files": checking.check_files,
    "costs": checking.check_costs,
    "prediction": checking.check_prediction,
    "never_empty": checking.check_never_empty,
    "json": checking.check_json,
    "open": checking.check_open,
    "states": checking.check_states,
    "penalty": checking.check_penalty,
    "training": checking.check_training,
    "shrink": checking.check_shrink,
    "weights_open": weights.check_open_is_plain,
    "weights_closed": weights.check_as_on_activations,
    "weights_gradients": weights.check_gradients,
    "weights_unread": weights.check_nothing_closed_is_read,
}
ON_CHAINS: dict[str, Callable[..., None]] = {
    "merge": chains.check_merge,
    "associative": chains.check_associative,
    "fold": chains.check_fold,
}
ON_STREAMS: dict[str, Callable[..., None]] = {
    "streams": checking.check_compact,
    "streams_open": checking.check_open,
    "streams_prediction": checking.check_prediction,
    "streams_shrink": checking.check_shrink,
}
ON_HEADS: dict[str, Callable[..., None]] = {
    "heads": checking.check_compact,
    "heads_shrink": checking.check_shrink,
}
LAWS = (*ON_NETWORKS, *ON_STREAMS, *ON_HEADS, *ON_CHAINS)
# A worker gives a law up once it has been broken this often.
MOST_FAILURES = 3


@dataclass(frozen=True, slots=True)
class Share:
    """What one worker does of one law."""

    law: str
    n_examples: int
    seed: int


@dataclass(frozen=True, slots=True)
class Result:
    """How many examples kept the law, and what happened where one did not."""

    n_kept: int
    failures: tuple[str, ...]


def try_law(share: Share) -> Result:
    """Try one law on a share of the examples; go on behind a failure with another seed."""
    torch.set_num_threads(1)
    n_kept = 0
    failures: list[str] = []
    law = (ON_NETWORKS | ON_STREAMS | ON_HEADS | ON_CHAINS)[share.law]
    networks = STREAMS if share.law in ON_STREAMS else NETWORKS
    networks = HEADS if share.law in ON_HEADS else networks
    drawn: tuple[Any, ...] = (chains.CHAINS,) if share.law in ON_CHAINS else (networks, gates)

    def counted(*example: Any) -> None:
        nonlocal n_kept
        law(*example)
        n_kept += 1

    while n_kept + len(failures) < share.n_examples and len(failures) < MOST_FAILURES:
        n_left = share.n_examples - n_kept - len(failures)
        try:
            _wrap(counted, drawn, n_left, share.seed + len(failures))()
        except Exception as error:
            failures.append("".join(traceback.format_exception(error, limit=-6)))
    return Result(n_kept, tuple(failures))


def _wrap(
    check: Callable[..., None], drawn: tuple[Any, ...], n_examples: int, start: int
) -> Callable[[], None]:
    chosen = settings(
        max_examples=n_examples,
        deadline=None,
        database=None,
        derandomize=False,
        phases=(Phase.generate,),
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )

    def one(example: tuple[Any, ...]) -> None:
        check(*example)

    return seed(start)(chosen(given(st.tuples(*drawn))(one)))


def try_all(laws: list[str], n_examples: int, n_workers: int, start: int) -> Iterator[Outcome]:
    """Try laws one after the other, each by all workers; yield how each fared."""
    with ProcessPoolExecutor(n_workers, mp_context=get_context("spawn")) as pool:
        for place, law in enumerate(laws):
            begun = time.monotonic()
            shares = divide(law, n_examples, n_workers, start + 1_000_000 * place)
            jobs = [pool.submit(try_law, share) for share in shares]
            n_run, n_failures = _collect(jobs)
            seconds = time.monotonic() - begun
            yield Outcome(law, n_run, n_failures, seconds, start, n_workers)


def divide(law: str, n_examples: int, n_workers: int, start: int) -> list[Share]:
    """Return two shares a worker, so that nobody waits long for the slowest."""
    n_shares = min(2 * n_workers, n_examples)
    sizes = [n_examples // n_shares + (i < n_examples % n_shares) for i in range(n_shares)]
    return [Share(law, size, start + 1000 * i) for i, size in enumerate(sizes)]


def _collect(jobs: list[Future[Result]]) -> tuple[int, int]:
    """Return how many examples were tried and how many failed; show the first of those."""
    results = [job.result() for job in jobs]
    failures = [failure for result in results for failure in result.failures]
    for failure in failures[:MOST_FAILURES]:
        _write(failure)
    return sum(result.n_kept for result in results) + len(failures), len(failures)


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Read the command line, try the laws, and return the exit status."""
    parser = argparse.ArgumentParser(description="Try every law on many random examples.")
    parser.add_argument("--examples", type=int, default=10_000, help="examples of each law")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**31)
    parser.add_argument("--laws", nargs="+", choices=LAWS, default=list(LAWS))
    parser.add_argument("--out", type=Path, help="a page (.md) that the outcomes are written to")
    asked = parser.parse_args()
    _write(f"seed {asked.seed}, torch {torch.__version__}, {asked.workers} workers")
    n_broken = 0
    for each in try_all(asked.laws, asked.examples, asked.workers, asked.seed):
        counts = f"{each.n_examples:6} examples {each.n_failures:4} failures"
        _write(f"{each.law:12} {counts} {each.seconds:7.1f} s")
        n_broken += each.n_failures > 0
        if asked.out:
            write_page(asked.out, [each], describe("hypothesis"))
    _write(f"{len(asked.laws)} laws, {n_broken} broken")
    return int(n_broken > 0)


if __name__ == "__main__":
    sys.exit(main())
