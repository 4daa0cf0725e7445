"""A catalogue of tiny networks: every way of writing one that archlearn must meet."""

from tests.zoo import (
    activations,
    attention,
    borrowed_shapes,
    convolutions,
    flattening,
    halves,
    interfaces,
    joins,
    norms,
    parameters,
    pooling,
    recurrent,
    residuals,
    shapes,
    traps,
)
from tests.zoo.kinds import BATCH, Inputs, Kind, call, in_double, randomise_
from tests.zoo.refused import REFUSED, Refused

ALL: tuple[Kind, ...] = (
    *activations.KINDS,
    *flattening.KINDS,
    *shapes.KINDS,
    *borrowed_shapes.KINDS,
    *pooling.KINDS,
    *norms.KINDS,
    *convolutions.KINDS,
    *residuals.KINDS,
    *joins.KINDS,
    *halves.KINDS,
    *attention.KINDS,
    *parameters.KINDS,
    *interfaces.KINDS,
    *recurrent.KINDS,
    *traps.KINDS,
)

__all__ = [
    "ALL",
    "BATCH",
    "REFUSED",
    "Inputs",
    "Kind",
    "Refused",
    "call",
    "in_double",
    "randomise_",
]
