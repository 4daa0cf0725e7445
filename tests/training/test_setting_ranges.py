"""Numbers outside their range are refused by name, before a run leaves anything behind."""

import math
from pathlib import Path
from typing import Any

import pytest

from archlearn.errors import SettingsError
from archlearn.training.config import RANGES, check_ranges, flat_settings, override
from archlearn.training.run import learn
from archlearn.training.settings import RunSettings

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


def test_defaults_lie_in_their_ranges_and_every_range_is_of_a_setting() -> None:
    check_ranges(RunSettings())
    assert set(RANGES) <= {name for _, name, _ in flat_settings()}
