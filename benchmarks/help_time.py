"""How soon help is there: each command's `--help` in a process of its own, the fastest of several.

    python -m benchmarks.help_time

The processor's time is given too, which other programs disturb less than the time on the clock.
"""

import argparse
import resource
import subprocess
import sys
import time

WANTED = 0.5
COMMANDS = ("", "learn", "inspect", "compact", "evaluate", "report", "paper", "compare", "data")


def time_help(command: str, repeats: int) -> list[tuple[float, float]]:
    """Return the seconds on the clock and of the processor that help took, each time."""
    words = [sys.executable, "-m", "archlearn_cli", *command.split(), "--help"]
    taken: list[tuple[float, float]] = []
    for _ in range(repeats):
        before = time.perf_counter(), _of_children()
        subprocess.run(words, check=True, capture_output=True)
        taken.append((time.perf_counter() - before[0], _of_children() - before[1]))
    return taken


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Print a line for each command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    print(f"| help of | fastest, s | of processor, s | below {WANTED} s |\n|---|--:|--:|---|")
    for command in COMMANDS:
        clock, processor = map(min, zip(*time_help(command, repeats), strict=True))
        verdict = "yes" if clock < WANTED else "no"
        name = f"archlearn {command}".strip()
        print(f"| {name} | {clock:.2f} | {processor:.2f} | {verdict} |")


if __name__ == "__main__":
    main()
