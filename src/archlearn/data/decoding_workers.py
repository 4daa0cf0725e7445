"""A long list of images is decoded by several processes into one file, each its own share."""

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from archlearn.data.decoding import Job
from archlearn.data.downloads import Progress
from archlearn.errors import DataError

_FEWEST_A_WORKER = 500
_ENDED: dict[str, Any] = {"ended": True}


def decode_all(
    file: Path, paths: Sequence[Path], side: int, progress: Progress
) -> Iterator[tuple[int, str]]:
    """Decode images into a file of the right size; yield place and reason of each broken one.

    Workers end with the iterator, whether it is exhausted or given up.

    Raises:
        DataError: If a worker does not get to its end.
    """
    n_workers = max(1, min(_n_cores(), len(paths) // _FEWEST_A_WORKER))
    jobs = [_share(file, paths, side, range(k, len(paths), n_workers)) for k in range(n_workers)]
    done = 0
    with _started(jobs, file.with_name("workers.log")) as said:
        running, finished = n_workers, 0
        while running:
            message = said.get()
            done += message.get("done", 0)
            finished += message.get("finished", False)
            if "broken" in message:
                yield message["broken"], message["why"]
            elif "ended" in message:
                running -= 1
            else:
                progress("images", done, len(paths))
    if finished < n_workers:
        raise DataError(
            f"{n_workers - finished} of {n_workers} processes that decode images ended early; "
            f"{_last_words(file.with_name('workers.log'))}"
        )


def _n_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _share(file: Path, paths: Sequence[Path], side: int, places: range) -> Job:
    return Job(
        file=str(file),
        n_images=len(paths),
        side=side,
        places=list(places),
        paths=[str(paths[place]) for place in places],
    )


@contextmanager
def _started(jobs: Sequence[Job], log: Path) -> Generator["queue.Queue[dict[str, Any]]"]:
    """Start a worker for each job; in the end none is left."""
    said: queue.Queue[dict[str, Any]] = queue.Queue()
    workers: list[subprocess.Popen[str]] = []
    listeners: list[threading.Thread] = []
    with log.open("w") as errors:
        try:
            for job in jobs:
                workers.append(_start(job, errors))
                listeners.append(threading.Thread(target=_listen, args=(workers[-1], said)))
                listeners[-1].start()
            yield said
        finally:
            for worker in workers:
                worker.kill()
            for worker, listener in zip(workers, listeners, strict=False):
                listener.join()
                worker.wait()
                assert worker.stdout is not None
                worker.stdout.close()


def _start(job: Job, errors: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "archlearn.data.decoding"]
    # The package may be on this process's path alone, as in a checkout that is not installed.
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path.rstrip(os.pathsep)}
    worker = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
        env=environment,
    )
    assert worker.stdin is not None
    try:
        worker.stdin.write(json.dumps(asdict(job)))
        worker.stdin.close()
    except BrokenPipeError:
        pass
    return worker


def _listen(worker: "subprocess.Popen[str]", said: "queue.Queue[dict[str, Any]]") -> None:
    assert worker.stdout is not None
    for line in worker.stdout:
        said.put(json.loads(line))
    said.put(_ENDED)


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "they left no word, as when memory runs out"
