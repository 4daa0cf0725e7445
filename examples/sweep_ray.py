"""Learn to several budgets with several seeds on a Ray cluster; print what each one costs.

    RAY_ADDRESS=head:6379 python examples/sweep_ray.py run.toml /shared/sweep 75%,50%,25% 0,1,2

Every machine needs archlearn and sees the folder by the same name. Without RAY_ADDRESS the runs are
made on this machine. If a worker dies, another one continues its run from the last checkpoint.
"""

import itertools
import sys
from pathlib import Path

import ray

from archlearn_cli.training import learn, override, read_settings, resume

config, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
budgets, seeds = sys.argv[3].split(","), [int(n) for n in sys.argv[4].split(",")]


@ray.remote(num_cpus=1, max_retries=3, max_calls=1)  # with GPUs: num_gpus=1, or a part of one
def run(budget: str, seed: int) -> str:
    """Return what one run came to; a process makes one run and ends."""
    chosen = {"budget": [f"multiply_adds={budget}"], "seed": seed}
    out = folder / f"{budget}-seed-{seed}"
    is_there = (out / "config.toml").is_file()
    summary = resume(out) if is_there else learn(override(read_settings(config), chosen), out)
    accuracy, cost = summary["validation_accuracy"], summary["after"]["multiply_adds"]
    return f"{budget}, seed {seed}: {accuracy:.2%} right, {cost:,} multiply-adds"


for line in ray.get([run.remote(*pair) for pair in itertools.product(budgets, seeds)]):
    print(line)
