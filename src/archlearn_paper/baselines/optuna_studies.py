"""A study lies in a file that several workers share; they may start together, and may be killed."""

import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

from archlearn.errors import InputError

WORKER = "worker"
"""Under this a study holds who trains."""
_N_ATTEMPTS = 8
_SECONDS_BETWEEN = 0.25
_LOCKED_FOR = 60.0
"""Seconds for which a worker waits while another writes."""


class Sampler:
    """Optuna's GPSampler, seeded anew for each training.

    What it draws follows from its seed and the number of the training. So workers that ask at the
    same time do not draw the same, and a study that is gone on with does not repeat itself.
    """

    def __init__(self, seed: int, n_random: int) -> None:
        self._samplers = import_optuna().samplers
        self._seed, self._n_random = seed, n_random
        self._own = self._make(0)

    def before_trial(self, study: Any, trial: Any) -> None:
        """Take note of the training that is to be proposed, and of who asks; comes first."""
        study._storage.set_trial_user_attr(trial._trial_id, WORKER, name_worker())
        self._own = self._make(trial.number)
        self._own.before_trial(study, trial)

    def __getattr__(self, name: str) -> Any:
        """Leave all else to the sampler itself."""
        return getattr(self._own, name)

    def _make(self, number: int) -> Any:
        mixed = 1009 * self._seed + number
        return self._samplers.GPSampler(seed=mixed, n_startup_trials=self._n_random)


def open_study(name: str, file: Path | None) -> Any:
    """Return a study, from its file if there is one.

    Of workers that start together, one makes the tables of the file, and the others try again.

    Raises:
        InputError: If the file holds something else, or cannot be written.
    """
    optuna = import_optuna()
    if file is None:
        return optuna.create_study(study_name=name, direction="minimize")
    from sqlalchemy.exc import IntegrityError, OperationalError, SQLAlchemyError

    for attempt in range(1, _N_ATTEMPTS + 1):
        try:
            return _open(optuna, name, file)
        except (IntegrityError, OperationalError) as error:
            if attempt == _N_ATTEMPTS:
                raise _refuse(file, error) from error
            time.sleep(_SECONDS_BETWEEN)
        except (SQLAlchemyError, OSError) as error:
            raise _refuse(file, error) from error
    raise AssertionError


def _open(optuna: Any, name: str, file: Path) -> Any:
    file.parent.mkdir(parents=True, exist_ok=True)
    storage = optuna.storages.RDBStorage(
        f"sqlite:///{file}", engine_kwargs={"connect_args": {"timeout": _LOCKED_FOR}}
    )
    return optuna.create_study(
        study_name=name, storage=storage, direction="minimize", load_if_exists=True
    )


def _refuse(file: Path, error: Exception) -> InputError:
    what = str(error).partition("\n")[0]
    return InputError(f"{file} cannot be used for a study: {what}; name another file")


def name_worker() -> str:
    """Return the machine and the number of this process."""
    return f"{socket.gethostname()} {os.getpid()}"


def is_gone(worker: str) -> bool:
    """Return whether a worker has ended, as far as can be told: of other machines it cannot."""
    host, _, number = worker.rpartition(" ")
    if host != socket.gethostname() or sys.platform == "win32":
        return False
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def import_optuna() -> Any:
    """Return the package, or say how to get it."""
    try:
        import optuna
    except ImportError as error:
        raise InputError(
            "Bayesian optimisation needs optuna, which is not installed; "
            "pip install 'archlearn[bench]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
