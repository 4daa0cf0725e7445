"""Every finished run is kept; what was asked before is not run again, what has changed is."""

import copy
import json
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
from archlearn_paper.baselines.budget import BudgetError
from archlearn_paper.commands import PageOptions, request_comparison
from archlearn_paper.comparison import choose_setup, find_methods
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
from archlearn_paper.recipes import Given, Holder
from archlearn_paper.results import (
    Results,
    find_commit,
    join_results,
    read_results,
    results_path,
    write_results,
)
from archlearn_paper.runner import RunRequest, check_earlier, run_key, run_stages
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
        origin = Origin(how="as it is", make=copy.deepcopy, parent=finished)
        asked = settings(scale, finished.row.seed)
        works.append(Run(row="again", settings=asked, origin=origin, is_trained=False))
        works.append(Run(row="longer", settings=asked, origin=origin))
    return works


def go_on_further(scale: Scale, done: Sequence[FinishedRun]) -> list[Run]:
    return [
        Run(row=f"further {row.seed}", settings=settings(scale, row.seed), origin=origin)
        for finished in done
        if (row := finished.row).row == "longer"
        for origin in [Origin(how="as it is", make=copy.deepcopy, parent=finished)]
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


def test_another_seed_is_added_and_other_settings_are_run_again(tmp_path: Path) -> None:
    carry_out(tmp_path)
    more = carry_out(tmp_path, scale=replace(SCALE, seeds=(0, 1, 2)))
    assert more == ["plain 2", "again 2", "longer 2"]
    assert carry_out(tmp_path, scale=replace(SCALE, seeds=(0, 1, 2), limit=150)) == [
        "plain 0", "plain 1", "plain 2", "again 0", "again 1", "again 2",
        "longer 0", "longer 1", "longer 2",
    ]  # fmt: skip


def delete_models(folder: Path, pattern: str = "*") -> None:
    for path in (folder / "models" / "trial").glob(pattern):
        path.unlink()


def test_what_is_done_after_an_epoch_counts_as_asked_for() -> None:
    run = Run(row="a", settings=settings(SCALE, 0))
    held = [Holder(given=Given(widths={"1": n}), first=0, last=1) for n in (3, 3, 4)]
    keys = [run_key(replace(run, after_epoch=holder)) for holder in held]
    assert keys[0] == keys[1] != keys[2]
    assert run_key(run) not in keys
    assert run_key(run) != run_key(replace(run, finish_compact=True))


def test_a_network_counts_by_the_run_that_it_comes_from_and_how() -> None:
    run = Run(row="a", settings=settings(SCALE, 0))
    parents = [FinishedRun(row=make_row("p", asked=key), path=Path("none")) for key in "xyx"]
    origins = [
        Origin(how="thinner", make=copy.deepcopy),
        Origin(how="other", make=copy.deepcopy),
        *(Origin(how="thinner", make=copy.deepcopy, parent=parent) for parent in parents),
    ]
    keys = [run_key(run), *(run_key(replace(run, origin=origin)) for origin in origins)]
    assert keys[3] == keys[5]
    assert len(set(keys)) == 5
    assert run_key(replace(run, network=nn.Linear(2, 2))) == run_key(run)


def test_where_a_run_is_computed_does_not_count_as_asked_for() -> None:
    run = Run(row="a", settings=settings(SCALE, 0))
    elsewhere = replace(run.settings, hardware=HardwareSettings(threads=3))
    assert run_key(run) == run_key(replace(run, settings=elsewhere))
    assert run_key(run) != run_key(replace(run, settings=settings(SCALE, 1)))


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
        origin = Origin(how="thin", make=refuse, parent=finished)
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


def test_runs_of_another_experiment_are_borrowed(tmp_path: Path) -> None:
    carry_out(tmp_path)
    shorter = replace(EXPERIMENT, name="other", stages=(train_plainly,), borrows=("trial",))
    assert carry_out(tmp_path, shorter) == []
    assert carry_out(tmp_path, replace(shorter, stages=(train_plainly, train_no_more))) == []
    stranger = replace(shorter, name="stranger", borrows=())
    assert carry_out(tmp_path, stranger) == ["plain 0", "plain 1"]


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


COMPARISON = "compare-lenet-digits-28"
ROWS = (
    "archlearn, strength 0.1 on neurons", "archlearn @ 5000", "svd @ 5000", "svd @ 10000",
    "svd, not fine-tuned @ 5000", "its architecture from scratch @ 5000",
    "neuron pruning @ 5000, round 1",
)  # fmt: skip
ALL_METHODS = "archlearn; svd; neuron pruning"
EARLIER = replace(FULL, seeds=(0, 1), data="digits:28", epochs=30)


def write_earlier(folder: Path, name: str, *, quick: bool = False) -> None:
    results = Results(
        experiment=name, command="", date="", hardware={}, versions={}, seeds=EARLIER.seeds,
        quick=quick, scale=asdict(EARLIER),
        rows=[make_row(row, settings={"model": "lenet"}) for row in ROWS],
    )  # fmt: skip
    write_results(folder, results)


def ask(folder: Path, scale: Scale) -> RunRequest:
    experiment = find_experiment("table-3")
    return RunRequest(experiment=experiment, scale=scale, folder=folder, command="")


@pytest.mark.parametrize(
    ("scale", "lost"),
    [
        (replace(EARLIER, seeds=(0, 2)), "seed 1"),
        (replace(EARLIER, data="mnist"), "data digits:28"),
        (replace(EARLIER, name=QUICK.name), "the full version"),
        (replace(EARLIER, epochs=5), "epochs 30"),
    ],
)
def test_fewer_results_are_refused_unless_forced(scale: Scale, lost: str, tmp_path: Path) -> None:
    write_earlier(tmp_path, "table-3")
    with pytest.raises(SettingsError, match=rf"table-3.json holds .* lost \({lost}\).*--force"):
        check_earlier(ask(tmp_path, scale))
    check_earlier(replace(ask(tmp_path, scale), force=True))


def test_more_results_are_not_refused(tmp_path: Path) -> None:
    check_earlier(ask(tmp_path, EARLIER))
    write_earlier(tmp_path, "table-3")
    check_earlier(ask(tmp_path, replace(EARLIER, seeds=(0, 1, 2))))
    write_earlier(tmp_path, "table-3", quick=True)
    check_earlier(ask(tmp_path, replace(EARLIER, seeds=(7,), epochs=60)))


@pytest.mark.parametrize(
    ("methods", "budgets", "lost"),
    [
        ("archlearn; neuron pruning", "5000,10000", "svd @ 5000, svd @ 10000"),
        (ALL_METHODS, "5000", "svd @ 10000"),
        (ALL_METHODS, "5000,10000", None),
    ],
)
def test_a_comparison_of_fewer_methods_or_budgets_is_refused(
    methods: str, budgets: str, lost: str | None, tmp_path: Path
) -> None:
    write_earlier(tmp_path, COMPARISON)
    contest = choose_setup(model="lenet", data="digits:28", budgets=budgets, seeds="0,1", epochs=30)
    request = request_comparison(
        PageOptions(out=tmp_path, command=""), contest, find_methods(methods)
    )
    if lost is None:
        check_earlier(request)
        return
    with pytest.raises(SettingsError, match=rf"lost \({lost}\); ask for them too"):
        check_earlier(request)


@pytest.mark.parametrize("name", [name for name in TITLES if name != "table-4"])
def test_full_results_of_the_repository_are_gone_on_with(name: str) -> None:
    """Of table 4 the results are of an earlier plan; later stages need models."""
    experiment, folder = find_experiment(name), Path(__file__).parents[2] / "results"
    scale = replace(FULL, seeds=tuple(range(experiment.n_seeds)))
    found = [read_results(folder, each) for each in (*experiment.borrows, name)]
    known = {row.asked for results in found if results for row in results.rows}
    runs = experiment.stages[0](scale, [])
    assert [run.row for run in runs if run_key(run) not in known] == []
    assert runs
