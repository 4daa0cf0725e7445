"""Files that hold no settings or no checkpoint are answered in a sentence, not by a traceback."""

from pathlib import Path

import pytest

from benchmarks.hostile_files import build_checkpoint, nest
from tests.cli.commands import assert_refused
from tests.run_files import CONFIG, LATEST


def test_settings_that_are_not_utf_8_are_named(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_bytes('data = "digits"  # \u00e9'.encode("latin-1"))
    assert_refused(
        "learn --config run.toml --out a", "run.toml is not TOML, which is UTF-8", tmp_path
    )


def test_a_run_whose_position_is_nested_very_deep_is_refused(tmp_path: Path) -> None:
    run = tmp_path / "a"
    run.mkdir()
    (run / CONFIG).write_text('data = "digits"\nmodel = "mlp:4"\n')
    (run / LATEST).write_bytes(build_checkpoint(nest(100_000)).content)
    for command in ("compact a", "learn --resume a"):
        assert_refused(command, "is torn (it has no position)", tmp_path)


@pytest.mark.parametrize("line", ["[1, 2]", '{"epoch": "three"}', '{"train_loss": 1.0}'])
def test_a_line_without_an_epoch_is_named_when_a_run_goes_on(line: str, tmp_path: Path) -> None:
    run = tmp_path / "a"
    run.mkdir()
    (run / CONFIG).write_text('data = "digits"\nmodel = "mlp:4"\n')
    (run / "metrics.jsonl").write_text(f"{line}\n")
    assert_refused("learn --resume a", "in which no epoch is a whole number; correct", tmp_path)
    assert (run / "metrics.jsonl").read_text() == f"{line}\n"
