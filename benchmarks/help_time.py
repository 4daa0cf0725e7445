"""How soon help is there: each command's `--help` in a process of its own, the fastest of several.

python -m benchmarks.help_time
"""

import argparse
import statistics
import subprocess
import sys
import time

WANTED = 0.5
COMMANDS = ("", "learn", "inspect", "compact", "evaluate", "report", "paper", "compare", "data")


def time_help(command: str, repeats: int) -> list[float]:
    """Return the seconds that help took, each time."""
    words = [sys.executable, "-m", "archlearn.cli", *command.split(), "--help"]
    taken: list[float] = []
    for _ in range(repeats):
        started = time.perf_counter()
        subprocess.run(words, check=True, capture_output=True)
        taken.append(time.perf_counter() - started)
    return taken


def main() -> None:
    """Print a line for each command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    print(f"| help of | fastest, s | median, s | below {WANTED} s |\n|---|--:|--:|---|")
    for command in COMMANDS:
        taken = time_help(command, repeats)
        verdict = "yes" if min(taken) < WANTED else "no"
        name = f"archlearn {command}".strip()
        print(f"| {name} | {min(taken):.2f} | {statistics.median(taken):.2f} | {verdict} |")


if __name__ == "__main__":
    main()
