"""Fuzz every reader of files: mutated files and hostile ones, in processes with limits.

Each file must give a result or an `ArchlearnError`, run nothing, and stay below 5 s of processor
time and 1 GB of memory. A file is a function of the seed, its family and its number, so that one
can be made again: `python -m benchmarks.fuzz_files --only "many calls" --number 7`.
"""

import argparse
import copy
import io
import json
import logging
import os
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import safetensors.torch
import torch
from torch import nn

import archlearn as al
from archlearn_cli.models.pretrained import read_pretrained
from archlearn_cli.training.checkpoint import LATEST, Position, read_checkpoint, write_checkpoint
from archlearn_cli.training.settings import RunSettings, format_settings, read_settings
from benchmarks import circumstances
from benchmarks.hostile_files import CANARY, CODE, FAMILIES, File, Json, SizedRandom

MUTATED = "mutated files"
CONTROL = "control"
# What a reader must not do, by the verdict on it: these show that the fuzzer would see it.
CONTROLS = {
    "executed": b"import os; os.system('true')",
    "untyped": b"1 / 0",
    "slow": b"while True: pass",
    "large": b"x = bytearray(3 * 2**30)",
}
MAX_SECONDS = 5
MAX_BYTES = 2**30
_BATCH = 250  # files that one process reads
# What code would do once it ran. Readers open files, but write and start nothing.
_EVENTS = (
    "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.remove", "os.rename",
    "os.mkdir", "os.rmdir", "os.chmod", "shutil.", "socket.", "subprocess.Popen", "pty.spawn",
    "webbrowser.open", "urllib.Request", "ctypes.dlopen", "code.__new__",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one file.

    Attributes:
        verdict: "read", "refused", "untyped", "executed", "slow" or "large".
        error: What was raised, where it was no error of ours.
        seconds: Processor time.
        n_bytes: The largest memory of the process so far, torch and all.
    """

    family: str
    number: int
    verdict: str
    error: str = ""
    seconds: float = 0.0
    n_bytes: int = 0


@dataclass(slots=True)
class Tally:
    """Outcomes of one family."""

    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    seconds: float = 0.0
    n_bytes: int = 0

    def add(self, outcome: Outcome) -> None:
        """Count one file in."""
        self.counts[outcome.verdict] += 1
        self.seconds = max(self.seconds, outcome.seconds)
        self.n_bytes = max(self.n_bytes, outcome.n_bytes)


class _Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.last = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 2))
        self.block = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        self.again = self.block
        self.lstm = nn.LSTM(2, 2, num_layers=2)
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x: torch.Tensor, gain: torch.Tensor | float = 1.0) -> dict[str, Any]:
        x = nn.functional.dropout(self.body(x) * gain, 0.5, training=self.training)
        y = self.last(self.head(nn.functional.adaptive_avg_pool2d(x, 1).view(x.shape[0], -1)))
        z, _ = self.lstm(self.again(self.block(y)))
        return {"y": y * self.scale, "z": z[..., :1] + torch.zeros(1, dtype=y.dtype)}


def build_corpus(folder: Path) -> list[File]:
    """Return one good file of every kind that is read."""
    torch.manual_seed(0)
    al.save(_Net(), folder / "net.safetensors", (torch.ones(1, 3, 8, 8), torch.ones(())))
    gated = al.add_gates(
        nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), torch.ones(2, 4)
    )
    al.save(al.compact(gated), folder / "compact.safetensors")
    attention = nn.TransformerEncoderLayer(4, 2, 4, batch_first=True)
    al.save(nn.Sequential(attention), folder / "leaf.safetensors", torch.ones(1, 2, 4))
    state = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Linear(2, 2)).state_dict()
    safetensors.torch.save_file(state, folder / "state.safetensors")
    torch.save(state, folder / "state.pth")
    torch.save({"state_dict": state}, folder / "old.pth", _use_new_zipfile_serialization=False)
    write_checkpoint(
        folder, Position(epoch=3, command="archlearn learn"), {"model/a": torch.ones(9)}
    )
    (folder / "config.toml").write_text(format_settings(RunSettings()))
    models = ["net.safetensors", "compact.safetensors", "leaf.safetensors"]
    weights = ["state.safetensors", "state.pth", "old.pth"]
    return [
        *(File("model", name, (folder / name).read_bytes()) for name in models * 3),
        *(File("weights", name, (folder / name).read_bytes()) for name in weights),
        File("checkpoint", LATEST, (folder / LATEST).read_bytes()),
        File("settings", "config.toml", (folder / "config.toml").read_bytes()),
    ]


def make_file(corpus: Sequence[File], asked: argparse.Namespace, family: str, number: int) -> File:
    """Return the file of a seed, a family and a number."""
    random = SizedRandom(f"{asked.seed}/{family}/{number}")
    random.largest = asked.largest
    if family == CONTROL:
        return File("control", "control", list(CONTROLS.values())[number])
    if family != MUTATED:
        return FAMILIES[family](random)
    good = random.choice(corpus)
    structured = good.name.endswith("safetensors") and random.random() < 0.7
    changed = _mutate_json(good.content, random) if structured else None
    return File(good.kind, good.name, changed or _mutate_bytes(good.content, corpus, random))


def _mutate_bytes(content: bytes, corpus: Sequence[File], random: Random) -> bytes:
    changed = bytearray(content)
    for _ in range(random.choice([1, 1, 2, 4, 16])):
        place = random.randrange(len(changed) + 1)
        length = random.choice([1, 1, 2, 4, 8, 64])
        match random.randrange(8):
            case 0 | 1 | 2:
                changed[place : place + length] = random.randbytes(length)
            case 3:
                changed[place : place + length] = b""
            case 4:
                changed[place:place] = random.randbytes(length)
            case 5:
                fill = random.choice([b"\xff", b"\0", b"\x80", b"\x7f", b"9", b"["])
                changed[place : place + length] = fill * length
            case 6:
                other = random.choice(corpus).content
                start = random.randrange(len(other))
                changed[place : place + length] = other[start : start + length]
            case _:
                del changed[place:]
    return bytes(changed)


def _mutate_json(content: bytes, random: Random) -> bytes | None:
    """Change values of the header, or of the description or certificate inside its metadata."""
    (length,) = struct.unpack("<Q", content[:8])
    header: Json = json.loads(content[8 : 8 + length])
    texts = [key for key in ("description", "certificate", "position") if key in _metadata(header)]
    if texts and random.random() < 0.8:
        key = random.choice(texts)
        value = json.loads(header["__metadata__"][key])
        _change(value, random)
        header["__metadata__"][key] = json.dumps(value)
    else:
        _change(header, random)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


def _metadata(header: Json) -> Json:
    return header.get("__metadata__", {})


def _change(value: Any, random: Random) -> None:
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        places = list(_places(value))
        if not places:
            return
        owner, key = random.choice(places)
        match random.randrange(6):
            case 0:
                del owner[key]
            case 1:
                other, inner = random.choice(places)
                owner[key] = copy.deepcopy(other[inner]) if other is not owner else None
            case 2 if isinstance(owner, list):
                owner.insert(key, copy.deepcopy(owner[key]))
            case 2:
                owner[random.choice(_JUNK_NAMES)] = owner.pop(key)
            case _:
                owner[key] = copy.deepcopy(random.choice(_JUNK))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = list(value.items() if isinstance(value, dict) else enumerate(value))
    for key, item in items:
        yield value, key
        if isinstance(item, dict | list):
            yield from _places(item)


_JUNK_NAMES = ["x", "", "__class__", "node", "tuple", "slice", "dict", "operation", "a b", CODE]
_JUNK: list[Any] = [
    None, True, False, -1, 0, 1, 3, 2**31, 2**62, 2**63, 2**70, 10**4000, 1.5, 1e308, -0.0,
    *_JUNK_NAMES, "os.system", "0", "torch.relu", "operator.iadd", "output", "self",
    "torch.nn.LSTM", "x\nimport os", "container", "torch.nn.Sequential", "parameter", "buffer",
    "constant", "float32", "int64", "bool", "placeholder", "get_attr", "call_module",
    "call_method", "call_function", "weight", "original0", "x_" + "9" * 5000, "\ud800", [], {},
    [[]], [0], [2**62, 2**62, 0], {"node": "x"}, {"node": 3}, {"tuple": 1}, {"tuple": []},
    {"slice": [1]}, {"slice": [1, 2, 3]}, {"dict": []}, {"float": "nan"}, {"dict": [["a", 1]]},
    {"operation": "torch.relu"}, {"operation": "os.system"}, {"device": "meta"},
    {"torch": "torch.float16"}, {"namedtuple": "T", "fields": ["a"]}, {"norm": "spectral_norm"},
    {"norm": "weight_norm", "dim": 2**62}, {"ellipsis": True}, "*x", "**x", "torch", "getattr",
]  # fmt: skip


def read_file(file: File, path: Path) -> object:
    """Read a file as the library or the command line would."""
    match file.kind:
        case "model":
            return al.load(path)
        case "weights":
            return read_pretrained(path)
        case "checkpoint":
            return read_checkpoint(path.parent)
        case "settings":
            return read_settings(path)
        case "control":
            return exec(path.read_bytes())


class _Auditor:
    """Notes whatever code from a file would do."""

    def __init__(self) -> None:
        self.watching = False
        self.seen: list[str] = []
        sys.addaudithook(self._note)

    def _note(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.watching:
            return
        writes = event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+")
        if writes or event.startswith(_EVENTS) or (event == "import" and CANARY in str(args[0])):
            self.seen.append(f"{event}{args!r}"[:200])


def _read_one(file: File, folder: Path, auditor: _Auditor) -> tuple[str, str]:
    path = folder / file.name
    path.write_bytes(file.content)
    auditor.seen.clear()
    auditor.watching = True
    try:
        read_file(file, path)
        verdict, error = "read", ""
    except al.ArchlearnError as refusal:
        verdict, error = "refused", ""
        str(refusal).encode()  # it can be printed
    except MemoryError as failure:
        verdict, error = "large", repr(failure)[:300]
    except BaseException as failure:
        verdict, error = "untyped", f"{type(failure).__name__}: {failure}"[:300]
    finally:
        auditor.watching = False
        path.unlink()
    if auditor.seen or (folder / CANARY).exists() or Path(CANARY).exists():
        return "executed", "; ".join(auditor.seen) or CANARY
    return verdict, error


def _memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def _serve(
    jobs: Sequence[tuple[str, int]], asked: argparse.Namespace, corpus: Any, pipe: int
) -> None:
    """Read files one by one and write what became of each; ends with the process."""
    folder = Path(tempfile.mkdtemp(dir=asked.folder))
    os.chdir(folder)
    warnings.simplefilter("ignore")
    logging.disable()
    auditor = _Auditor()
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # which ends the process, in C code as well
    with os.fdopen(pipe, "w") as out:
        for family, number in jobs:
            file = make_file(corpus, asked, family, number)
            killed = f"killed after {asked.seconds} s"
            started = Outcome(family, number, "slow", killed, asked.seconds)
            out.write(json.dumps(asdict(started)) + "\n")
            out.flush()
            limit = _memory("VmSize") + MAX_BYTES
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
            signal.setitimer(signal.ITIMER_PROF, asked.seconds)
            start = time.process_time()
            Path("/proc/self/clear_refs").write_text("5")  # the peak of memory starts anew
            verdict, error = _read_one(file, folder, auditor)
            seconds = time.process_time() - start
            signal.setitimer(signal.ITIMER_PROF, 0)
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            peak = _memory("VmHWM")
            verdict = "large" if peak > MAX_BYTES and verdict in ("read", "refused") else verdict
            done = Outcome(family, number, verdict, error, seconds, peak)
            out.write(json.dumps(asdict(done)) + "\n")
            out.flush()
            del file
    shutil.rmtree(folder, ignore_errors=True)


def run(jobs: Sequence[tuple[str, int]], asked: argparse.Namespace) -> Iterator[Outcome]:
    """Yield what becomes of each file, read in processes of their own."""
    corpus = build_corpus(Path(tempfile.mkdtemp(dir=asked.folder)))
    for file in corpus:  # so that what torch imports late is imported before anything is watched
        path = Path(tempfile.mkdtemp(dir=asked.folder)) / file.name
        path.write_bytes(file.content)
        read_file(file, path)
    left = list(jobs)
    while left:
        n_jobs = _BATCH if left[0][0] == MUTATED else 10
        batch = [job for job in left[:n_jobs] if job[0] == left[0][0]]
        outcomes = _run_batch(batch, asked, corpus)
        yield from outcomes
        left = left[len(outcomes) :]


def run_side_by_side(
    jobs: Sequence[tuple[str, int]], asked: argparse.Namespace
) -> Iterator[Outcome]:
    """Share the files out among several processes, and yield what became of each at the end."""
    lanes: list[tuple[int, Path]] = []
    for lane in range(asked.jobs):
        path = asked.folder / f"lane{lane}.jsonl"
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with path.open("w") as out:
                    for outcome in run(jobs[lane :: asked.jobs], asked):
                        out.write(json.dumps(asdict(outcome)) + "\n")
                        out.flush()
                status = 0
            finally:
                os._exit(status)
        lanes.append((child, path))
    for child, path in lanes:
        _, status = os.waitpid(child, 0)
        if status:
            raise RuntimeError(f"a process of the fuzzer itself failed (status {status})")
        yield from (Outcome(**json.loads(line)) for line in path.read_text().splitlines())


def _run_batch(
    batch: Sequence[tuple[str, int]], asked: argparse.Namespace, corpus: Sequence[File]
) -> list[Outcome]:
    """Return the outcomes of the first files of a batch, up to one that ends the process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reader)
            _serve(batch, asked, corpus, writer)
            status = 0
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as answers:
        found = [Outcome(**json.loads(line)) for line in answers]
    _, status = os.waitpid(child, 0)
    last = {(outcome.family, outcome.number): outcome for outcome in found}
    outcomes = [last[job] for job in batch if job in last]
    if not outcomes or (status and not os.WIFSIGNALED(status)):
        raise RuntimeError(f"a process of the fuzzer itself failed (status {status})")
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGPROF:
        name = signal.Signals(os.WTERMSIG(status)).name
        outcomes[-1] = Outcome(
            outcomes[-1].family, outcomes[-1].number, "untyped", f"ended by {name}"
        )
    return outcomes


def write_page(path: Path, tallies: dict[str, Tally], bad: Sequence[Outcome], seed: int) -> None:
    """Write counts per family, the slowest and the largest of each, and every file that failed."""
    out = io.StringIO()
    total = Tally()
    n_hostile = sum(sum(t.counts.values()) for name, t in tallies.items() if name != MUTATED)
    n_mutated = sum(tallies[MUTATED].counts.values()) if MUTATED in tallies else 0
    for tally in tallies.values():
        for verdict, count in tally.counts.items():
            total.counts[verdict] += count
    counts = total.counts
    n_families = len(tallies) - (MUTATED in tallies)
    out.write(
        "# Fuzzing the readers of files\n\n"
        f"{n_mutated:,} mutated files, and {n_hostile:,} hostile ones of {n_families} families: "
        f"{counts['executed']} executed, {counts['untyped']} with an error that is not ours, "
        f"{counts['slow']} over {MAX_SECONDS} s of processor time, {counts['large']} over 1 GB of "
        "memory (the process with torch and all).\n\n"
        f"Seed {seed}. {circumstances.as_markdown(circumstances.describe('safetensors'))}\n\n"
        "| family | files | read | refused | executed | untyped | over time | over memory "
        "| slowest, s | largest, MB |\n|---|---|---|---|---|---|---|---|---|---|\n"
    )
    for name, tally in tallies.items():
        columns = [
            tally.counts[verdict]
            for verdict in ("read", "refused", "executed", "untyped", "slow", "large")
        ]
        row = " | ".join(f"{count:,}" for count in (sum(tally.counts.values()), *columns))
        out.write(f"| {name} | {row} | {tally.seconds:.2f} | {tally.n_bytes / 1e6:.0f} |\n")
    if bad:
        out.write("\n## What failed\n\n")
        out.writelines(f"- {b.family} {b.number}: {b.verdict}, `{b.error}`\n" for b in bad)
    path.write_text(out.getvalue())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the fuzzer; the exit status is 1 if any file failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutated", type=int, default=100_000, help="how many mutated files")
    parser.add_argument("--hostile", type=int, default=1_000, help="how many of all families")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=MAX_SECONDS, help="for one file")
    parser.add_argument("--largest", type=int, default=2**40, help="no size above, to be quick")
    parser.add_argument("--control", action="store_true", help="readers that must fail")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--only", choices=[MUTATED, *FAMILIES], help="one family")
    parser.add_argument("--number", type=int, help="one file of --only")
    parser.add_argument("--out", type=Path, help="the page to write, as results/fuzz.md")
    parser.add_argument("--folder", type=Path, help="where files are put while they are read")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)  # a fork carries no pool of threads, and would wait for it
    n_each = -(-asked.hostile // len(FAMILIES))
    jobs = [(name, number) for name in FAMILIES for number in range(n_each)]
    jobs += [(MUTATED, number) for number in range(asked.mutated)]
    if asked.only:
        jobs = [job for job in jobs if job[0] == asked.only]
    if asked.number is not None:
        jobs = [(asked.only, asked.number)]
    if asked.control:
        jobs = [(CONTROL, number) for number in range(len(CONTROLS))]
    tallies: dict[str, Tally] = {}
    bad: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        asked.folder = asked.folder or Path(folder)
        outcomes = run(jobs, asked) if asked.jobs == 1 else run_side_by_side(jobs, asked)
        for n_done, outcome in enumerate(outcomes, start=1):
            tallies.setdefault(outcome.family, Tally()).add(outcome)
            if outcome.verdict not in ("read", "refused"):
                bad.append(outcome)
                print(outcome, flush=True)
            if n_done % 10_000 == 0:
                print(f"{n_done:,} of {len(jobs):,} files, {len(bad)} failed", flush=True)
    for name, tally in tallies.items():
        print(f"{name}: {dict(tally.counts)}, {tally.seconds:.2f} s, {tally.n_bytes / 1e6:.0f} MB")
    if asked.out:
        write_page(asked.out, tallies, bad, asked.seed)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
