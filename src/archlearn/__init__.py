"""Learn a network's architecture in one training run, then compact it exactly.

Every public name is loaded when it is first used, so that `import archlearn` costs nothing.
"""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from archlearn import data as data
    from archlearn import models as models
    from archlearn import reporting as reporting
    from archlearn import serialization as serialization
    from archlearn import training as training
    from archlearn.analysis.original_channels import kept_channels
    from archlearn.costs import Costs, Price
    from archlearn.errors import (
        ArchlearnError,
        CertificateError,
        CheckpointError,
        DataError,
        FileError,
        GateError,
        InputError,
        RunInterruptedError,
        RunStoppedError,
        SettingsError,
        SurgeryError,
        TracingError,
    )
    from archlearn.gating.attach import add_gates
    from archlearn.gating.cost_counter import count_costs
    from archlearn.gating.learn import Learn
    from archlearn.gating.parameters import (
        branch_gates,
        clip_gates_,
        depth_gates,
        parameter_groups,
        weights,
        width_gates,
    )
    from archlearn.gating.penalties import Strengths, penalty
    from archlearn.nn.tristate_activation import Gate, TriState
    from archlearn.optim.distillation import distill
    from archlearn.optim.gate_optimizer import GateOptimizer
    from archlearn.optim.gate_schedule import GateSchedule
    from archlearn.optim.inspection import inspect
    from archlearn.optim.latency import LatencyTable, measure_latency
    from archlearn.optim.shrinking import shrink_
    from archlearn.serialization import load, save
    from archlearn.surgery.architecture import Architecture, read_architecture
    from archlearn.surgery.compaction import compact
    from archlearn.surgery.planning import Plan, plan
    from archlearn.verification.certificate import Certificate, certify
    from archlearn.verification.speed import compare_speed

__version__ = "0.1.0"

_HOMES = {
    "archlearn.analysis.original_channels": "kept_channels",
    "archlearn.gating.cost_counter": "count_costs",
    "archlearn.errors": (
        "ArchlearnError CertificateError CheckpointError DataError FileError "
        "GateError InputError RunInterruptedError RunStoppedError SettingsError "
        "SurgeryError TracingError"
    ),
    "archlearn.gating.attach": "add_gates",
    "archlearn.gating.learn": "Learn",
    "archlearn.gating.parameters": (
        "branch_gates clip_gates_ depth_gates parameter_groups weights width_gates"
    ),
    "archlearn.gating.penalties": "Strengths penalty",
    "archlearn.costs": "Costs Price",
    "archlearn.nn.tristate_activation": "Gate TriState",
    "archlearn.optim.distillation": "distill",
    "archlearn.optim.gate_optimizer": "GateOptimizer",
    "archlearn.optim.gate_schedule": "GateSchedule",
    "archlearn.optim.inspection": "inspect",
    "archlearn.optim.latency": "LatencyTable measure_latency",
    "archlearn.optim.shrinking": "shrink_",
    "archlearn.serialization": "load save",
    "archlearn.surgery.architecture": "Architecture read_architecture",
    "archlearn.surgery.compaction": "compact",
    "archlearn.surgery.planning": "Plan plan",
    "archlearn.verification.certificate": "Certificate certify",
    "archlearn.verification.speed": "compare_speed",
}


def lazy_names(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that imports the home of a name at its first use."""
    home_of = {name: home for home, names in homes.items() for name in names.split()}

    def find(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return find


_ROOMS = ("data", "models", "reporting", "serialization", "training")
_find_name = lazy_names(__name__, _HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name, or a package such as `archlearn.models`, when it is first used."""
    return import_module(f"{__name__}.{name}") if name in _ROOMS else _find_name(name)


__all__ = [
    "Architecture",
    "ArchlearnError",
    "Certificate",
    "CertificateError",
    "CheckpointError",
    "Costs",
    "DataError",
    "FileError",
    "Gate",
    "GateError",
    "GateOptimizer",
    "GateSchedule",
    "InputError",
    "LatencyTable",
    "Learn",
    "Plan",
    "Price",
    "RunInterruptedError",
    "RunStoppedError",
    "SettingsError",
    "Strengths",
    "SurgeryError",
    "TracingError",
    "TriState",
    "add_gates",
    "branch_gates",
    "certify",
    "clip_gates_",
    "compact",
    "compare_speed",
    "count_costs",
    "depth_gates",
    "distill",
    "inspect",
    "kept_channels",
    "load",
    "measure_latency",
    "parameter_groups",
    "penalty",
    "plan",
    "read_architecture",
    "save",
    "shrink_",
    "weights",
    "width_gates",
]


def __dir__() -> list[str]:
    """List the public names without importing their homes."""
    return [*__all__, "__version__"]
