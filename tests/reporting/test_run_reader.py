"""A run's folder is read as far as it was written."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from archlearn import InputError
from archlearn_cli.reporting.run_reader import read_json_lines, read_run, read_speed, score_of
from tests.reporting.run_folders import LENET, write_lines, write_run


def test_a_finished_run_is_read_whole(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a"))
    assert run.finished
    assert run.notes == ()
    assert (run.model, run.data, run.score, run.score_source) == ("lenet", "mnist", 0.9932, "test")
    assert (run.before.architecture, run.after.architecture) == ("20-50-500-10", "11-25-29-10")
    assert dict(run.after.widths) == {"conv1": 11, "conv2": 25, "fc1": 29, "fc2": 10}
    assert (run.before.costs["parameters"], run.after.costs["parameters"]) == (431080, 19115)
    assert [epoch["epoch"] for epoch in run.epochs] == list(range(13))


def test_an_unfinished_run_is_read_from_its_epochs(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "a", finished=False))
    assert not run.finished
    assert "unfinished" in run.notes[0]
    assert "after epoch 6" in run.notes[0]
    assert run.before.architecture == "20-50-500-10"
    assert run.after.widths == run.epochs[-1]["widths"]
    assert (run.score, run.score_source) == (score_of(run.epochs[-1]), "validation")


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", finished=False)
    metrics = folder / "metrics.jsonl"
    metrics.write_bytes(metrics.read_bytes()[:-40])
    assert [epoch["epoch"] for epoch in read_run(folder).epochs] == [0, 1, 2, 3, 4, 5]


def test_a_line_torn_inside_a_character_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes('{"epoch": 1}\n{"name": "é'.encode()[:-1])
    assert list(read_json_lines(path)) == [{"epoch": 1}]


def test_an_epoch_written_again_after_resuming_replaces_the_first(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", finished=False)
    rows = [{"epoch": 1, "train_loss": 9.0}, {"epoch": 0}, {"epoch": 1, "train_loss": 2.0}]
    write_lines(folder / "metrics.jsonl", rows)
    assert [(e["epoch"], e.get("train_loss")) for e in read_run(folder).epochs] == [
        (0, None),
        (1, 2.0),
    ]


def test_a_loss_that_is_not_a_number_counts_as_not_measured(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", finished=False)
    (folder / "metrics.jsonl").write_text('{"epoch": 1, "train_loss": NaN, "penalty": Infinity}\n')
    (epoch,) = read_run(folder).epochs
    assert epoch == {"epoch": 1}


def test_a_summary_that_cannot_be_read_is_said_and_the_epochs_are_used(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    (folder / "summary.json").write_text('{"format": 1, "bef')
    run = read_run(folder)
    assert not run.finished
    assert "summary.json could not be read" in run.notes[-1]
    assert run.before.architecture == "20-50-500-10"


def test_a_run_that_has_just_begun_has_a_configuration_only(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('model = "lenet"\ndata = "mnist"\n')
    run = read_run(tmp_path)
    assert run.epochs == ()
    assert run.score is None
    assert "before its first measurement" in run.notes[0]
    assert any("metrics.jsonl is missing" in note for note in run.notes)


def test_a_summary_without_widths_takes_them_from_the_epochs(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    summary = json.loads((folder / "summary.json").read_text())
    summary["before"] = {"parameters": 431080, "multiply_adds": 2293000}
    (folder / "summary.json").write_text(json.dumps(summary))
    before = read_run(folder).before
    assert (before.architecture, before.costs["parameters"]) == ("20-50-500-10", 431080)


def test_regression_is_scored_by_its_error(tmp_path: Path) -> None:
    story = replace(LENET, task="regression", data="diabetes", score=2874.3)
    run = read_run(write_run(tmp_path / "a", story))
    assert (run.regression, run.score, run.score_name) == (True, 2874.3, "squared error")


def test_a_folder_that_is_no_run_is_refused_with_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(InputError, match=r"config\.toml is missing; give a folder"):
        read_run(tmp_path)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        read_run(tmp_path / "nowhere")


def test_a_configuration_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("model = ")
    with pytest.raises(InputError, match=r"config\.toml is not TOML"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    "text", ["a = " + "[" * 5000 + "]" * 5000, "a = " + "1" * 5000], ids=["nested", "digits"]
)
def test_a_hostile_configuration_is_refused(tmp_path: Path, text: str) -> None:
    folder = write_run(tmp_path / "run", LENET)
    (folder / "config.toml").write_text(text)
    with pytest.raises(InputError, match=r"config\.toml is not TOML"):
        read_run(folder)


def test_a_line_and_a_summary_that_are_nested_too_deep_are_left_out(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", LENET)
    n_epochs = len(read_run(folder).epochs)
    with (folder / "metrics.jsonl").open("a") as file:
        file.write("[" * 100_000 + "]" * 100_000 + "\n")
    (folder / "summary.json").write_text("[" * 100_000 + "]" * 100_000)
    assert len(read_run(folder).epochs) == n_epochs


def test_writing_a_report_needs_neither_torch_nor_pyplot(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a")
    program = (
        "import sys; from pathlib import Path; from archlearn_cli.reporting import write_report\n"
        f"write_report(Path({str(folder)!r}), Path({str(tmp_path / 'r.html')!r}))\n"
        "print(sorted({'torch', 'matplotlib.pyplot'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_speeds_are_read_where_they_have_been_measured(tmp_path: Path) -> None:
    row = '{"device": "cpu", "batch_size": 1, "seconds": [0.002, 0.001], "bytes": [80, 40]}'
    assert read_speed(tmp_path) == []
    for text, n_rows in ((f'{{"rows": [{row}]}}', 1), ("{", 0)):
        (tmp_path / "speed.json").write_text(text)
        assert len(read_speed(tmp_path)) == n_rows
