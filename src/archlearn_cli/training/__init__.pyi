"""The public names, and where each is; `archlearn.lazy_names` reads this list."""

from archlearn_cli.training.callbacks import EpochEnd as EpochEnd
from archlearn_cli.training.callbacks import EpochLogger as EpochLogger
from archlearn_cli.training.callbacks import RunStart as RunStart
from archlearn_cli.training.callbacks import SilentCallback as SilentCallback
from archlearn_cli.training.checkpoint import read_checkpoint as read_checkpoint
from archlearn_cli.training.metrics import evaluate as evaluate
from archlearn_cli.training.objectives import objective_of as objective_of
from archlearn_cli.training.run import Audience as Audience
from archlearn_cli.training.run import learn as learn
from archlearn_cli.training.run import resume as resume
from archlearn_cli.training.run_setup import Session as Session
from archlearn_cli.training.run_setup import load_dataset as load_dataset
from archlearn_cli.training.run_setup import load_gated_model as load_gated_model
from archlearn_cli.training.run_setup import prepare as prepare
from archlearn_cli.training.settings import GateSettings as GateSettings
from archlearn_cli.training.settings import HardwareSettings as HardwareSettings
from archlearn_cli.training.settings import OptimizerSettings as OptimizerSettings
from archlearn_cli.training.settings import RecordSettings as RecordSettings
from archlearn_cli.training.settings import RunSettings as RunSettings
from archlearn_cli.training.settings import StrengthSettings as StrengthSettings
from archlearn_cli.training.settings import override as override
from archlearn_cli.training.settings import read_settings as read_settings
