"""What can stop a run, each with a sentence that says what happened and what to try."""

from archlearn.errors import ArchlearnError, FileError, InputError


class SettingsError(InputError):
    """A setting is misspelt, of the wrong kind, or at odds with another one."""


class DataError(ArchlearnError):
    """A data set cannot be found, read or trusted."""


class CheckpointError(FileError):
    """A checkpoint is torn, foreign, or of another run."""


class RunStoppedError(ArchlearnError):
    """A run cannot go on, but what it has done is safe and can be resumed."""


class RunInterruptedError(RunStoppedError):
    """A run was told to stop, and saved itself first."""
