"""Every finished run is kept; what was asked before is not run again, what has changed is."""

import copy
import json
import math
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from archlearn import DataError, RunInterruptedError, SettingsError
from archlearn_cli.data.standard_datasets import load_digits
from archlearn_cli.training import GateSettings, HardwareSettings, RunSettings
from archlearn_paper.baselines.parameter_budget import BudgetError
from archlearn_paper.experiment import (
    FULL,
    QUICK,
    Experiment,
    FinishedRun,
    Origin,
    Row,
    Run,
    Scale,
)
from archlearn_paper.experiments import TITLES, find_experiment
from archlearn_paper.results import (
    Results,
    find_commit,
    join_results,
    read_results,
    results_path,
    write_results,
)
from archlearn_paper.runner import RunRequest, check_earlier, run_stages
from paper.tests.making import make_row

SCALE = replace(FULL, seeds=(0, 1), epochs=2, limit=200, data="digits")


class Notebook:
    """Notes what is heard of an experiment."""

    def __init__(self) -> None:
        self.made: list[str] = []

    def began(self, n_runs: int, n_known: int) -> None:
        pass

    def advanced(self, done: int, of: int) -> None:
        assert 0 < done <= of

    def finished(self, row: Row) -> None:
        self.made.append(f"{row.row} {row.seed}")


def settings(scale: Scale, seed: int) -> RunSettings:
    return RunSettings(
        model="mlp:8",
        data=scale.data,
        seed=seed,
        epochs=scale.epochs,
        limit=scale.limit,
        gates=GateSettings(learn="nothing"),
        hardware=HardwareSettings(accelerator="cpu"),
    )


def train_plainly(scale: Scale, done: Sequence[FinishedRun]) -> list[Run]:
    assert not done
    return [Run(row="plain", settings=settings(scale, seed)) for seed in scale.seeds]


def go_on(scale: Scale, done: Sequence[FinishedRun]) -> list[Run]:
    works: list[Run] = []
    for finished in done:
        origin = Origin(make=copy.deepcopy, parent=finished)
        asked = settings(scale, finished.row.seed)
        works.append(Run(row="again", settings=asked, origin=origin, is_trained=False))
        works.append(Run(row="longer", settings=asked, origin=origin))
    return works


def go_on_further(scale: Scale, done: Sequence[FinishedRun]) -> list[Run]:
    return [
        Run(row=f"further {row.seed}", settings=settings(scale, row.seed), origin=origin)
        for finished in done
        if (row := finished.row).row == "longer"
        for origin in [Origin(make=copy.deepcopy, parent=finished)]
    ]


def by_the_rows_alone(scale: Scale, done: Sequence[FinishedRun]) -> list[Run]:
    return [Run(row="next", settings=settings(scale, d.row.seed + 10)) for d in done]


def train_no_more(scale: Scale, done: Sequence[FinishedRun]) -> list[Run]:
    for finished in done:
        finished.load_model()
    return []


def derive(rows: Sequence[Row]) -> dict[str, Any]:
    return {"order": [f"{row.row} {row.seed}" for row in rows]}


EXPERIMENT = Experiment(
    name="trial",
    title="a trial",
    stages=(train_plainly, go_on),
    derive=derive,
    check=lambda derived: [],
    tabulate=lambda derived: [],
)


def carry_out(folder: Path, experiment: Experiment = EXPERIMENT, scale: Scale = SCALE) -> list[str]:
    notebook = Notebook()
    run_stages(
        RunRequest(experiment=experiment, scale=scale, folder=folder, command="trial"), notebook
    )
    return notebook.made


ALL = ["plain 0", "plain 1", "again 0", "again 1", "longer 0", "longer 1"]


def test_stages_follow_each_other_and_rows_stand_in_order(tmp_path: Path) -> None:
    assert carry_out(tmp_path) == ALL
    results = read_results(tmp_path, "trial")
    assert results is not None
    assert results.complete
    assert results.derived["order"] == [
        "plain 0",
        "plain 1",
        "again 0",
        "longer 0",
        "again 1",
        "longer 1",
    ]
    table = json.loads(results_path(tmp_path, "trial").read_text())
    assert table["command"] == "trial"
    assert table["seeds"] == [0, 1]
    assert table["hardware"]["device"]
    assert table["versions"]["torch"]
    assert table["date"].endswith("UTC")


def test_a_network_that_is_only_measured_scores_what_it_scored_in_training(tmp_path: Path) -> None:
    carry_out(tmp_path)
    results = read_results(tmp_path, "trial")
    assert results is not None
    by_name = {(row.row, row.seed): row for row in results.rows}
    for seed in (0, 1):
        trained, measured = by_name["plain", seed], by_name["again", seed]
        assert measured.test_accuracy == trained.test_accuracy
        assert measured.test_loss == pytest.approx(trained.test_loss)
        assert measured.train_loss == pytest.approx(trained.train_loss)
        assert measured.parameters == trained.parameters
        assert by_name["longer", seed].train_loss < trained.train_loss


def test_what_is_there_is_not_run_again(tmp_path: Path) -> None:
    carry_out(tmp_path)
    before = results_path(tmp_path, "trial").read_text()
    assert carry_out(tmp_path) == []
    after = results_path(tmp_path, "trial").read_text()
    assert json.loads(after)["rows"] == json.loads(before)["rows"]


def test_an_interrupted_experiment_goes_on(tmp_path: Path) -> None:
    class Tired(Notebook):
        def finished(self, row: Row) -> None:
            super().finished(row)
            if len(self.made) == 3:
                raise KeyboardInterrupt

    order = RunRequest(experiment=EXPERIMENT, scale=SCALE, folder=tmp_path, command="trial")
    with pytest.raises(RunInterruptedError, match="the same command goes on"):
        run_stages(order, Tired())
    assert read_results(tmp_path, "trial") is None
    results = read_results(tmp_path, "trial", unfinished=True)
    assert results is not None
    assert len(results.rows) == 3
    assert carry_out(tmp_path) == ALL[3:]
    assert read_results(tmp_path, "trial", unfinished=True) is None


def test_complete_results_stay_until_new_ones_are_complete(tmp_path: Path) -> None:
    class Tired(Notebook):
        def finished(self, row: Row) -> None:
            raise KeyboardInterrupt

    carry_out(tmp_path)
    before = results_path(tmp_path, "trial").read_text()
    more = replace(SCALE, seeds=(0, 1, 2))
    order = RunRequest(experiment=EXPERIMENT, scale=more, folder=tmp_path, command="trial")
    with pytest.raises(RunInterruptedError):
        run_stages(order, Tired())
    assert results_path(tmp_path, "trial").read_text() == before
    assert carry_out(tmp_path, scale=more) == ["again 2", "longer 2"]


def test_every_run_tells_the_commit_that_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMIT", "abc1234")
    carry_out(tmp_path)
    results = read_results(tmp_path, "trial")
    assert results is not None
    assert results.commits == ["abc1234"]
    older = replace(results, rows=[replace(results.rows[0], commit=""), *results.rows[1:]])
    assert older.commits == ["abc1234", "not recorded"]
    monkeypatch.delenv("COMMIT")
    assert re.fullmatch(r"[0-9a-f]{7,}\+?", find_commit())


def test_another_seed_is_added_and_another_scale_is_run_again(tmp_path: Path) -> None:
    carry_out(tmp_path)
    more = replace(SCALE, seeds=(0, 1, 2))
    assert carry_out(tmp_path, scale=more) == ["plain 2", "again 2", "longer 2"]
    notebook = Notebook()
    fewer = replace(more, limit=150)
    order = RunRequest(experiment=EXPERIMENT, scale=fewer, folder=tmp_path, command="", force=True)
    run_stages(order, notebook)
    assert notebook.made == [
        "plain 0", "plain 1", "plain 2", "again 0", "again 1", "again 2",
        "longer 0", "longer 1", "longer 2",
    ]  # fmt: skip


def delete_models(folder: Path, pattern: str = "*") -> None:
    for path in (folder / "models" / "trial").glob(pattern):
        path.unlink()


def test_finished_runs_need_no_models(tmp_path: Path) -> None:
    carry_out(tmp_path)
    delete_models(tmp_path)
    assert carry_out(tmp_path) == []
    more = replace(SCALE, seeds=(0, 1, 2))
    assert carry_out(tmp_path, scale=more) == ["plain 2", "again 2", "longer 2"]


def test_a_lost_model_is_learnt_again_if_a_missing_run_starts_from_it(tmp_path: Path) -> None:
    carry_out(tmp_path, replace(EXPERIMENT, stages=(train_plainly,)))
    delete_models(tmp_path, "plain.seed1*")
    assert carry_out(tmp_path) == ["plain 1", *ALL[2:]]


def test_what_a_lost_model_starts_from_is_learnt_again_too(tmp_path: Path) -> None:
    carry_out(tmp_path)
    delete_models(tmp_path, "longer.seed0*")
    delete_models(tmp_path, "plain*")
    whole = replace(EXPERIMENT, stages=(train_plainly, go_on, go_on_further))
    further = ["further 0 0", "further 1 1"]
    order = RunRequest(
        experiment=whole, scale=SCALE, folder=tmp_path, command="trial", rows=("further*",)
    )
    notebook = Notebook()
    assert run_stages(order, notebook) is not None
    assert notebook.made == ["plain 0", "longer 0", *further]
    assert carry_out(tmp_path, whole) == []


def test_a_run_that_is_made_again_is_measured_again(tmp_path: Path) -> None:
    def measure(scale: Scale, done: FinishedRun) -> dict[str, Any]:
        return {"n": len(list(done.load_model().parameters()))}

    measuring = replace(EXPERIMENT, measure=measure)
    carry_out(tmp_path, replace(measuring, stages=(train_plainly,)))
    delete_models(tmp_path)
    assert carry_out(tmp_path, measuring) == ALL
    results = read_results(tmp_path, "trial")
    assert results is not None
    assert [row.measured for row in results.rows] == [{"n": 4}] * 6


def test_a_run_that_cannot_meet_its_budget_is_left_out_for_good(tmp_path: Path) -> None:
    tried: list[int] = []

    def refuse(model: nn.Module) -> nn.Module:
        tried.append(1)
        raise BudgetError("too small")

    def thin(scale: Scale, done: Sequence[FinishedRun]) -> list[Run]:
        (finished,) = [done for done in done if done.row.seed == 0]
        origin = Origin(make=refuse, parent=finished)
        return [Run(row="thin", settings=settings(scale, 0), origin=origin)]

    experiment = replace(EXPERIMENT, stages=(train_plainly, thin, by_the_rows_alone))
    assert carry_out(tmp_path, experiment) == ["plain 0", "plain 1", "next 10", "next 11"]
    delete_models(tmp_path)
    assert carry_out(tmp_path, experiment) == []
    assert tried == [1]


def test_models_that_nobody_needs_may_be_lost(tmp_path: Path) -> None:
    experiment = replace(EXPERIMENT, stages=(train_plainly, by_the_rows_alone))
    carry_out(tmp_path, experiment)
    delete_models(tmp_path)
    assert carry_out(tmp_path, experiment) == []

    def measure(scale: Scale, done: FinishedRun) -> dict[str, Any]:
        return {"n": len(list(done.load_model().parameters()))} if done.row.row == "plain" else {}

    assert carry_out(tmp_path, replace(experiment, measure=measure)) == ["plain 0", "plain 1"]


def test_what_is_measured_of_a_model_is_measured_once(tmp_path: Path) -> None:
    seen: list[str] = []

    def measure(scale: Scale, done: FinishedRun) -> dict[str, Any]:
        seen.append(done.row.row)
        return {"n": sum(p.numel() for p in done.load_model().parameters())}

    measuring = replace(EXPERIMENT, stages=(train_plainly,), measure=measure)
    carry_out(tmp_path, measuring)
    carry_out(tmp_path, measuring)
    assert seen == ["plain", "plain"]
    results = read_results(tmp_path, "trial")
    assert results is not None
    assert [row.measured["n"] for row in results.rows] == [64 * 8 + 8 + 8 * 10 + 10] * 2


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    results_path(tmp_path, "trial").write_text('{"rows": [1]}')
    with pytest.raises(DataError, match=r"trial\.json does not hold results"):
        carry_out(tmp_path)


def test_digits_are_not_taken_for_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("archlearn_paper.runner.load_examples", lambda name: load_digits(28))
    with pytest.raises(DataError, match="MNIST could not be had"):
        carry_out(tmp_path, scale=replace(SCALE, data="mnist"))
    assert not results_path(tmp_path, "trial").exists()


def test_runs_are_made_in_pieces_and_none_begins_when_the_time_is_up(tmp_path: Path) -> None:
    def make(**given: Any) -> list[str]:
        notebook = Notebook()
        request = RunRequest(
            experiment=EXPERIMENT, scale=SCALE, folder=tmp_path, command="trial", **given
        )
        whole = run_stages(request, notebook) is not None
        assert whole == results_path(tmp_path, "trial").is_file()
        return notebook.made

    assert make(until=time.monotonic() - 1) == []
    assert make(rows=("nothing", "longer")) == []
    assert make(rows=("plain", "long*")) == ["plain 0", "plain 1", "longer 0", "longer 1"]
    assert make() == ["again 0", "again 1"]


def test_what_was_measured_is_kept_when_the_time_is_up(tmp_path: Path) -> None:
    seen: list[int] = []

    def measure(scale: Scale, done: FinishedRun) -> dict[str, Any]:
        seen.append(done.row.seed)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return {"seed": done.row.seed}

    measuring = replace(EXPERIMENT, stages=(train_plainly,), measure=measure)
    with pytest.raises(RunInterruptedError):
        carry_out(tmp_path, measuring)
    assert carry_out(tmp_path, measuring) == []
    assert seen == [0, 1, 1]


def test_a_run_is_measured_before_the_next_is_done(tmp_path: Path) -> None:
    class Tired(Notebook):
        def finished(self, row: Row) -> None:
            super().finished(row)
            if len(self.made) == 2:
                raise KeyboardInterrupt

    def measure(scale: Scale, done: FinishedRun) -> dict[str, Any]:
        return {"seed": done.row.seed}

    order = RunRequest(
        experiment=replace(EXPERIMENT, measure=measure),
        scale=SCALE,
        folder=tmp_path,
        command="trial",
    )
    with pytest.raises(RunInterruptedError):
        run_stages(order, Tired())
    results = read_results(tmp_path, "trial", unfinished=True)
    assert results is not None
    assert [row.measured for row in results.rows] == [{"seed": 0}, {}]


def test_runs_of_several_folders_are_joined(tmp_path: Path) -> None:
    experiment = replace(EXPERIMENT, stages=(train_plainly,))
    for seed in (1, 0):
        carry_out(tmp_path / str(seed), experiment, replace(SCALE, seeds=(seed,)))
    joined = join_results([tmp_path / "1", tmp_path / "0", tmp_path / "2"], "trial")
    assert joined is not None
    assert [row.seed for row in joined.rows] == [1, 0]
    assert joined.seeds == [0, 1]
    assert join_results([tmp_path / "2"], "trial") is None


EARLIER = replace(FULL, seeds=(0, 1), data="digits:28", epochs=30)


def write_earlier(folder: Path, name: str, *, quick: bool = False, scale: Scale = EARLIER) -> None:
    results = Results(
        experiment=name, command="", date="", hardware={}, versions={}, seeds=EARLIER.seeds,
        quick=quick, scale=asdict(scale),
        rows=[make_row("depth 6", settings={"model": "lenet"})],
    )  # fmt: skip
    write_results(folder, results)


def ask(folder: Path, scale: Scale) -> RunRequest:
    experiment = find_experiment("table-3")
    return RunRequest(experiment=experiment, scale=scale, folder=folder, command="")


@pytest.mark.parametrize(
    ("scale", "found"),
    [
        (replace(EARLIER, data="mnist"), "data digits:28"),
        (replace(EARLIER, name=QUICK.name), "name full"),
        (replace(EARLIER, epochs=5), "epochs 30"),
    ],
)
def test_results_of_another_scale_are_kept_unless_forced(
    scale: Scale, found: str, tmp_path: Path
) -> None:
    write_earlier(tmp_path, "table-3")
    with pytest.raises(SettingsError, match=rf"table-3.*json holds results .*{found}.*--force"):
        check_earlier(ask(tmp_path, scale))
    check_earlier(replace(ask(tmp_path, scale), force=True))


def test_results_of_the_same_scale_or_of_a_quick_version_are_gone_on_with(tmp_path: Path) -> None:
    check_earlier(ask(tmp_path, EARLIER))
    write_earlier(tmp_path, "table-3")
    check_earlier(ask(tmp_path, replace(EARLIER, seeds=(0, 1, 2))))
    write_earlier(tmp_path, "table-3", quick=True)
    check_earlier(ask(tmp_path, replace(EARLIER, seeds=(7,), epochs=60)))


def test_where_the_images_lie_makes_no_difference(tmp_path: Path) -> None:
    images = replace(EARLIER, data="tiny-imagenet:/here")
    write_earlier(tmp_path, "table-3", scale=images)
    check_earlier(ask(tmp_path, replace(images, data="tiny-imagenet:there")))


def test_seeds_and_rows_that_are_not_asked_for_stay(tmp_path: Path) -> None:
    carry_out(tmp_path, scale=replace(SCALE, seeds=(0, 1, 2)))
    assert carry_out(tmp_path, replace(EXPERIMENT, stages=(train_plainly,))) == []
    results = read_results(tmp_path, "trial")
    assert results is not None
    assert len(results.rows) == 9


def test_another_version_of_an_experiment_makes_its_runs_again(tmp_path: Path) -> None:
    carry_out(tmp_path)
    newer = replace(EXPERIMENT, version=2)
    with pytest.raises(SettingsError, match=r"version 1 at .* and version 2 at .*--force"):
        carry_out(tmp_path, newer)
    order = RunRequest(experiment=newer, scale=SCALE, folder=tmp_path, command="trial", force=True)
    notebook = Notebook()
    run_stages(order, notebook)
    assert notebook.made == ALL
    assert carry_out(tmp_path, newer) == []


def test_a_page_does_not_wait_for_an_extra_stage(tmp_path: Path) -> None:
    extended = replace(EXPERIMENT, extra=by_the_rows_alone)
    order = RunRequest(
        experiment=extended, scale=SCALE, folder=tmp_path, command="trial", until=math.inf,
        rows=("plain", "again", "longer"),
    )  # fmt: skip
    assert run_stages(order, Notebook()) is not None
    assert carry_out(tmp_path, extended) == ["next 10", "next 11"]
    results = read_results(tmp_path, "trial")
    assert results is not None
    assert results.derived["order"][-2:] == ["next 10", "next 11"]


@pytest.mark.parametrize("name", sorted(set(TITLES) - {"table-4", "figure-1b"}))
def test_full_results_of_the_repository_are_gone_on_with(name: str) -> None:
    """Of table 4 the results are of an earlier plan; later stages need models."""
    experiment, folder = find_experiment(name), Path(__file__).parents[2] / "results"
    scale = replace(FULL, seeds=tuple(range(experiment.n_seeds)))
    results = read_results(folder, name)
    assert results is not None
    request = RunRequest(experiment=experiment, scale=scale, folder=folder, command="")
    check_earlier(request)
    known = {row.key for row in results.rows}
    runs = experiment.stages[0](scale, [])
    assert [run.key for run in runs if run.key not in known] == []
    assert runs
