"""Learn to several budgets with several seeds by Optuna's grid search; print what each one costs.

    python examples/sweep_optuna.py run.toml runs/sweep 75%,50%,25% 0,1,2

`run.toml` holds settings, as the config.toml of a run. Given again, the command makes the runs that
are missing. Compare runs by their validation accuracy, and test the one that is chosen.
"""

import sys
from pathlib import Path

import optuna

from archlearn_cli.training import learn, override, read_settings, resume

config, folder = Path(sys.argv[1]), Path(sys.argv[2])
grid = {"multiply_adds": sys.argv[3].split(","), "seed": [int(n) for n in sys.argv[4].split(",")]}


def run(trial: optuna.Trial) -> tuple[float, int]:
    """Return the accuracy on validation data and the multiply-adds of one run."""
    budget, seed = (trial.suggest_categorical(name, values) for name, values in grid.items())
    chosen = {"budget": [f"multiply_adds={budget}"], "seed": seed}
    out = folder / f"{budget}-seed-{seed}"
    is_there = (out / "config.toml").is_file()
    summary = resume(out) if is_there else learn(override(read_settings(config), chosen), out)
    return summary["validation_accuracy"], summary["after"]["multiply_adds"]


sampler = optuna.samplers.GridSampler(grid)
study = optuna.create_study(sampler=sampler, directions=["maximize", "minimize"])
study.optimize(run)
for trial in sorted(study.trials, key=lambda trial: trial.values[1]):
    print(f"{trial.params}: {trial.values[0]:.2%} right, {trial.values[1]:,.0f} multiply-adds")
