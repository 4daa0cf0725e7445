"""A run is what its folder says, as plain data; whatever is absent is None or empty."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from archlearn.reporting.json_values import Table


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """What was measured at the end of one epoch; epoch 0 is before training.

    Attributes:
        score: Accuracy on the validation data, or the squared error for regression.
        is_error: Whether `score` is an error.
        widths: Channels kept in each layer, in order of the network, the output last; layers
            that merge at this moment are not among them.
        linear: For each layer whose depth is learnt, whether it stands at linear.
        gap: Mean distance of a gate from its nearer binary value.
        budget_path: What each cost with a budget may be at this moment.
        price: What the next channel to go earns for what it costs.
    """

    epoch: int
    train_loss: float | None
    validation_loss: float | None
    score: float | None
    is_error: bool
    penalty: float | None
    widths: Mapping[str, int]
    linear: Mapping[str, bool]
    gap: float | None
    binarised_share: float | None
    parameters: int | None
    multiply_adds: int | None
    seconds: float | None
    budget_path: Mapping[str, int] = field(default_factory=dict[str, int])
    price: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """A network at one moment: its layers and what it costs."""

    architecture: str
    widths: Mapping[str, int]
    parameters: int | None
    multiply_adds: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Everything the report knows of one run.

    Attributes:
        validation_score: Accuracy or squared error on validation data after the last epoch.
        test_score: The same on test data, which a run looks at once, when it has finished.
        before: The network at the start.
        after: The compact network, or the network as its gates stand now.
        merged: Layers that became linear and went into the next one.
        notes: Sentences about what is absent or could not be read.
        summary: The summary as written, empty while the run is unfinished.
    """

    folder: Path
    name: str
    model: str
    data: str
    regression: bool
    finished: bool
    validation_score: float | None
    test_score: float | None
    epochs: tuple[Epoch, ...]
    before: Standing
    after: Standing
    merged: tuple[str, ...]
    config: Table
    summary: Table
    notes: tuple[str, ...]

    @property
    def score(self) -> float | None:
        """The figure of merit of the run by itself, on test data where it has finished."""
        return self.validation_score if self.test_score is None else self.test_score

    @property
    def score_source(self) -> str:
        """Where `score` was measured, `test` or `validation`."""
        return "validation" if self.test_score is None else "test"

    @property
    def score_name(self) -> str:
        """The word for the figure of merit."""
        return "squared error" if self.regression else "accuracy"
