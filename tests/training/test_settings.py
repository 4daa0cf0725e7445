"""Settings as TOML and tables: names, kinds and ranges are checked."""

import math
from pathlib import Path
from typing import Any

import pytest

from archlearn import SettingsError
from archlearn_cli.training import (
    GateSettings,
    OptimizerSettings,
    RecordSettings,
    RunSettings,
    learn,
    override,
)
from archlearn_cli.training.settings import (
    changed_fixed,
    check_ranges,
    flat_settings,
    format_settings,
    parse_settings,
    read_settings,
)


def test_settings_survive_toml() -> None:
    settings = RunSettings(
        model='odd "name" \\ with\ttab',
        epochs=7,
        validation=0.1 + 0.2,
        optimizer=OptimizerSettings(learning_rate=1e-05),
        gates=GateSettings(leave=("conv1", "fc*")),
        record=RecordSettings(logger="tensorboard"),
    )
    assert parse_settings(format_settings(settings), "x") == settings


def test_misspelt_key_suggests_the_right_one_and_its_table() -> None:
    with pytest.raises(SettingsError, match="no setting 'epoch'; did you mean 'epochs'"):
        parse_settings("epoch = 3", "run.toml")
    with pytest.raises(SettingsError, match=r"'learning_rate' \(in the table \[optimizer\]\)"):
        parse_settings("learning_rat = 3", "run.toml")
    with pytest.raises(SettingsError, match=r"'strengths.width_cst'; did you mean 'width_cost'"):
        parse_settings("[strengths]\nwidth_cst = 3", "run.toml")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('epochs = "three"', "'epochs' must be a whole number, but 'three' was given"),
        ("epochs = 2.5", "must be a whole number"),
        ("epochs = true", "must be a whole number"),
        ('[gates]\nlearn = "widht"', "did you mean 'width'"),
        ("gates = 3", "'gates' is a table"),
        ("epochs = ", "run.toml is not TOML"),
        ("epochs = " + "1" * 5000, "run.toml is not TOML"),
        ("epochs = " + "[" * 5000 + "]" * 5000, "run.toml is no settings file: it is nested too"),
        ("[gates]\nleave = 3", "'gates.leave' must be a list of texts, but 3 was given"),
        ('[gates]\nbudget = "a=5%"', "but 'a=5%' was given; write \\[\"a=5%\"\\]"),
        ("[strengths]\nwidth_cost = 1" + "0" * 400, "'strengths.width_cost' must be a number"),
    ],
)
def test_wrong_values_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        parse_settings(text, "run.toml")


def test_whole_numbers_are_numbers_too() -> None:
    assert parse_settings("[strengths]\nwidth_cost = 1", "x").strengths.width_cost == 1.0


def test_options_override_whatever_table_they_are_in() -> None:
    settings = override(RunSettings(), {"width_cost": 1e-3, "epochs": 2, "leave": ("a",)})
    assert settings.strengths.width_cost == 1e-3
    assert settings.epochs == 2
    assert settings.gates.leave == ("a",)
    with pytest.raises(SettingsError, match="did you mean 'width_cost'"):
        override(RunSettings(), {"width_costs": 1.0})


def test_names_of_settings_are_unique_over_all_tables() -> None:
    names = [name for _, name, _ in flat_settings()]
    assert len(names) == len(set(names))


def test_a_resumed_run_must_keep_what_is_fixed() -> None:
    before = RunSettings()
    after = override(before, {"seed": 3, "learning_rate": 0.1})
    assert changed_fixed(before, after) == ["seed"]


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nothing.toml: No such .*; give a TOML file"):
        read_settings(tmp_path / "nothing.toml")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"seed = 1 # \xe9", "run.toml is not TOML, which is UTF-8: .* byte 0xe9 in position 11"),
        ("seed = 1".encode("utf-16"), "is not TOML, which is UTF-8: .* byte 0xff in position 0"),
        (b"#" * 2**21, r"more than 32,768 bytes \(MAX_CONFIG_BYTES"),
    ],
)
def test_files_that_hold_no_settings_are_named(
    tmp_path: Path, content: bytes, complaint: str
) -> None:
    (tmp_path / "run.toml").write_bytes(content)
    with pytest.raises(SettingsError, match=complaint):
        read_settings(tmp_path / "run.toml")


def test_long_lists_of_dotted_names_are_settings() -> None:
    names = [f"model.layers.{i}.mlp.up_proj" for i in range(100)]
    assert parse_settings(f"[gates]\nleave = {names}", "x").gates.leave == tuple(names)


SMALL = {"model": "mlp:8", "data": "digits", "epochs": 1, "limit": 200, "threads": 1}


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0}, {"epochs": -3}, {"batch_size": 0}, {"limit": 0}, {"limit": -5},
        {"validation": 1.5}, {"validation": -0.1}, {"learning_rate": 0.0},
        {"learning_rate": -1.0}, {"learning_rate": math.inf}, {"learning_rate": math.nan},
        {"momentum": 1.0}, {"weight_decay": -1.0}, {"clip_norm": -1.0}, {"warmup_epochs": -1.0},
        {"gate_rate": -1.0}, {"largest_step": -1.0}, {"start_after": 1.5}, {"freeze_for": -0.1},
        {"width_start": 2.0}, {"width_spread": 1.5}, {"depth_start": -1.0}, {"travel": -1.0},
        {"width_cost": -1.0}, {"depth_share": -1.0}, {"accumulate": 0}, {"threads": 0},
        {"checkpoint_seconds": -1.0},
    ],
    ids=str,
)  # fmt: skip
def test_a_number_out_of_its_range_is_refused_and_leaves_no_folder(
    wrong: dict[str, Any], tmp_path: Path
) -> None:
    ((name, value),) = wrong.items()
    settings = override(RunSettings(), {**SMALL, **wrong})
    option = name.replace("_", "-")
    with pytest.raises(SettingsError, match=rf"{name} is {value}; give --{option} a .*number"):
        learn(settings, tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_gates_that_could_never_move_are_refused() -> None:
    settings = override(RunSettings(), {"start_after": 0.6, "freeze_for": 0.4})
    with pytest.raises(SettingsError, match="gates would never move"):
        check_ranges(settings)
    check_ranges(override(settings, {"learn": "nothing"}))


def test_a_budget_without_gates_is_refused() -> None:
    settings = override(RunSettings(), {"learn": "nothing", "budget": ("parameters=50%",)})
    with pytest.raises(
        SettingsError, match="a budget of parameters=50% was asked for, but --learn"
    ):
        check_ranges(settings)


def test_defaults_lie_in_their_ranges() -> None:
    check_ranges(RunSettings())
