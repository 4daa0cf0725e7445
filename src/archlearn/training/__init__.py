"""`archlearn learn` as a library: settings, one training run, its evaluation."""

from typing import TYPE_CHECKING

from archlearn import lazy_names

if TYPE_CHECKING:
    from archlearn.training.callbacks import EpochEnd, EpochLogger, RunStart, SilentCallback
    from archlearn.training.checkpoint import read_checkpoint
    from archlearn.training.metrics import evaluate
    from archlearn.training.objectives import objective_of
    from archlearn.training.run import Audience, learn, resume
    from archlearn.training.run_setup import Session, load_dataset, load_gated_model, prepare
    from archlearn.training.settings import (
        GateSettings,
        HardwareSettings,
        OptimiserSettings,
        RecordSettings,
        RunSettings,
        StrengthSettings,
        override,
    )

__all__ = [
    "Audience",
    "EpochEnd",
    "EpochLogger",
    "GateSettings",
    "HardwareSettings",
    "OptimiserSettings",
    "RecordSettings",
    "RunSettings",
    "RunStart",
    "Session",
    "SilentCallback",
    "StrengthSettings",
    "evaluate",
    "learn",
    "load_dataset",
    "load_gated_model",
    "objective_of",
    "override",
    "prepare",
    "read_checkpoint",
    "resume",
]

__getattr__ = lazy_names(
    __name__,
    {
        "archlearn.training.callbacks": "EpochEnd EpochLogger RunStart SilentCallback",
        "archlearn.training.checkpoint": "read_checkpoint",
        "archlearn.training.metrics": "evaluate",
        "archlearn.training.objectives": "objective_of",
        "archlearn.training.run": "Audience learn resume",
        "archlearn.training.run_setup": "Session load_dataset load_gated_model prepare",
        "archlearn.training.settings": (
            "GateSettings HardwareSettings OptimiserSettings RecordSettings RunSettings "
            "StrengthSettings override"
        ),
    },
)
