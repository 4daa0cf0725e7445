"""The public names, and where each is; `archlearn.lazy_names` reads this list."""

from archlearn.training.callbacks import EpochEnd as EpochEnd
from archlearn.training.callbacks import EpochLogger as EpochLogger
from archlearn.training.callbacks import RunStart as RunStart
from archlearn.training.callbacks import SilentCallback as SilentCallback
from archlearn.training.checkpoint import read_checkpoint as read_checkpoint
from archlearn.training.metrics import evaluate as evaluate
from archlearn.training.objectives import objective_of as objective_of
from archlearn.training.run import Audience as Audience
from archlearn.training.run import learn as learn
from archlearn.training.run import resume as resume
from archlearn.training.run_setup import Session as Session
from archlearn.training.run_setup import load_dataset as load_dataset
from archlearn.training.run_setup import load_gated_model as load_gated_model
from archlearn.training.run_setup import prepare as prepare
from archlearn.training.settings import GateSettings as GateSettings
from archlearn.training.settings import HardwareSettings as HardwareSettings
from archlearn.training.settings import OptimiserSettings as OptimiserSettings
from archlearn.training.settings import RecordSettings as RecordSettings
from archlearn.training.settings import RunSettings as RunSettings
from archlearn.training.settings import StrengthSettings as StrengthSettings
from archlearn.training.settings import override as override
