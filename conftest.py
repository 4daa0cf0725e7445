"""Properties are tried on the same examples every time; the thorough profile tries more."""

import fcntl
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

import archlearn

if not Path(archlearn.__file__).is_relative_to(Path(__file__).parent):
    pytest.exit(f"these tests are of another tree than {archlearn.__file__}; set PYTHONPATH=src", 1)

# A shell starts what it runs in the background deaf to Ctrl-C, and our tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

common = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
settings.register_profile("quick", common, max_examples=30)
settings.register_profile("default", common, max_examples=300)
settings.register_profile("thorough", common, max_examples=10_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
# Tiny tensors gain nothing from threads, and the workers of pytest share the cores.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def fresh_accelerate() -> Iterator[None]:
    """Accelerate keeps the precision of the first `Accelerator` of a process; forget it."""
    yield
    if "accelerate" in sys.modules:
        sys.modules["accelerate"].state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def one_group_of_processes() -> Iterator[None]:
    """Let no other test start a group of processes meanwhile: both might be given the same port."""
    with (Path(tempfile.gettempdir()) / "archlearn-processes.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
