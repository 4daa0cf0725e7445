"""`archlearn demo`."""

import os
import shutil
import sys
from pathlib import Path

_MOST_THREADS = 4
EXAMPLES = """Examples:
  archlearn demo
  archlearn demo --out runs/mine
"""


def demo(*, out: Path = Path("runs/demo")) -> None:
    """Learn LeNet's architecture on MNIST within 10,000 parameters; show before and after.

    Takes a few minutes on two cores. A demo that was stopped half-way is taken up again.

    Args:
        out: The run's folder.
    """
    # Threads that wait without spinning leave a busy machine to those that work.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from archlearn.cli.run import resume_run, start_run
    from archlearn.training.run_directory import CONFIG, SUMMARY
    from archlearn.training.settings import GateSettings, HardwareSettings, RunSettings

    if (out / SUMMARY).exists():
        sys.stdout.write(f"an earlier demo in {out} makes room for this one\n")
        shutil.rmtree(out)
    if (out / CONFIG).exists():
        resume_run(out, {})
        return
    threads = HardwareSettings(threads=min(_MOST_THREADS, os.cpu_count() or 1))
    budget = GateSettings(budget=("parameters=10000",))
    start_run(RunSettings(gates=budget, hardware=threads), out)
