"""The public names, and where each is; `lazy_names` reads this list."""

from collections.abc import Callable
from typing import Any

from archlearn import serialization as serialization
from archlearn.analysis.original_channels import kept_channels as kept_channels
from archlearn.costs import Costs as Costs
from archlearn.costs import Price as Price
from archlearn.errors import ArchlearnError as ArchlearnError
from archlearn.errors import CertificateError as CertificateError
from archlearn.errors import CheckpointError as CheckpointError
from archlearn.errors import DataError as DataError
from archlearn.errors import FileError as FileError
from archlearn.errors import GateError as GateError
from archlearn.errors import InputError as InputError
from archlearn.errors import RunInterruptedError as RunInterruptedError
from archlearn.errors import RunStoppedError as RunStoppedError
from archlearn.errors import SettingsError as SettingsError
from archlearn.errors import SurgeryError as SurgeryError
from archlearn.errors import TracingError as TracingError
from archlearn.gating.attach import add_gates as add_gates
from archlearn.gating.cost_counter import count_costs as count_costs
from archlearn.gating.learn import Learn as Learn
from archlearn.gating.parameters import branch_gates as branch_gates
from archlearn.gating.parameters import clip_gates_ as clip_gates_
from archlearn.gating.parameters import depth_gates as depth_gates
from archlearn.gating.parameters import parameter_groups as parameter_groups
from archlearn.gating.parameters import weights as weights
from archlearn.gating.parameters import width_gates as width_gates
from archlearn.gating.penalties import Strengths as Strengths
from archlearn.gating.penalties import penalty as penalty
from archlearn.nn.tristate_activation import Gate as Gate
from archlearn.nn.tristate_activation import TriState as TriState
from archlearn.optim.distillation import distill as distill
from archlearn.optim.gate_optimizer import GateOptimizer as GateOptimizer
from archlearn.optim.gate_schedule import GateSchedule as GateSchedule
from archlearn.optim.inspection import inspect as inspect
from archlearn.optim.latency import LatencyTable as LatencyTable
from archlearn.optim.latency import measure_latency as measure_latency
from archlearn.optim.shrinking import shrink_ as shrink_
from archlearn.serialization import load as load
from archlearn.serialization import save as save
from archlearn.surgery.architecture import Architecture as Architecture
from archlearn.surgery.architecture import read_architecture as read_architecture
from archlearn.surgery.compaction import compact as compact
from archlearn.surgery.planning import Plan as Plan
from archlearn.surgery.planning import plan as plan
from archlearn.verification.certificate import Certificate as Certificate
from archlearn.verification.certificate import certify as certify
from archlearn.verification.speed import compare_speed as compare_speed

__version__: str

def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], list[str]]: ...
