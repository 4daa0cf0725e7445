"""Under which circumstances something was measured, for the head of a result file."""

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch

_CPU_INFO = Path("/proc/cpuinfo")


def describe(*packages: str, device: str = "cpu") -> dict[str, str]:
    """Return command, date, hardware, the versions of Python, torch and other packages."""
    found = {
        "command": _command(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "hardware": _hardware(device),
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    return found | {name: _version(name) for name in packages} | {"commit": _commit()}


def as_markdown(circumstances: dict[str, str]) -> str:
    """Return circumstances as two sentences."""
    rest = ", ".join(
        f"{name} {value}" for name, value in circumstances.items() if name not in _SAID
    )
    said = circumstances
    return f"`{said['command']}`, {said['date']}, on {said['hardware']}: {rest}."


_SAID = ("command", "date", "hardware")


def _command() -> str:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    script = ["-m", spec.name] if spec is not None else [sys.argv[0]]
    return shlex.join(["python", *script, *sys.argv[1:]])


def _hardware(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    lines = _CPU_INFO.read_text().splitlines() if _CPU_INFO.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    name = models[0] if models else platform.processor() or platform.machine()
    return f"{os.cpu_count()} CPU cores ({name})"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    named = os.environ.get("COMMIT")  # where the working tree came without its history
    if named:
        return named
    asked = ["git", "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return done.stdout.strip() or "unknown"
