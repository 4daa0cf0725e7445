"""The penalty is what the paper adds to the loss: binary gates, few neurons, few layers."""

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from archlearn.errors import InputError, with_article
from archlearn.gating.container import GateStore
from archlearn.gating.gate_coefficients import find_prices
from archlearn.gating.parameters import find_holders
from archlearn.gating.strengths import Price, Strengths
from archlearn.nn.functional import is_open, join_gates
from archlearn.nn.hard_concrete import count_expected
from archlearn.nn.tristate import TriState


def penalty(model: nn.Module, strengths: Strengths) -> Float[Tensor, ""]:
    """Return what is added to the loss (the paper's equations 4 and 5).

    `λ1 Σ w(1−w) + λ2 Σ d(1−d) + λ3 Σ h·1(d < ½) − λ4 Σ d`. The indicator has no gradient.
    A gate that several layers share counts once for each of their neurons. Gates of the kind
    "l0" cost `λ3` times the neurons that are to be expected, and are not pushed towards 0 or 1.

    Raises:
        InputError: If the model has no gates.
    """
    if not isinstance(strengths, Strengths):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError(
            f"strengths is {with_article(type(strengths).__name__)}; give archlearn.Strengths, "
            "such as Strengths.from_width_cost(1e-3)"
        )
    terms: list[Tensor] = []
    for holder in find_holders(model):
        if isinstance(holder, GateStore):
            terms.append(_price_store(holder, strengths))
        else:
            terms.extend(_price_by_hand(holder, strengths))
    return terms[0] if len(terms) == 1 else torch.stack(terms).sum()


def _price_store(store: GateStore, strengths: Strengths) -> Tensor:
    """Return the penalty of all gates `g` of a store at once, as `Σ g·(a + b − a·g)`.

    For a width gate `a` is λ1 times its neurons (or their price), and `b` is λ3 times those that
    are not linear; for a depth gate they are λ2 and −λ4. Neither has a gradient. Of width gates
    of the kind "l0", `g` is the probability to be open, and `a` is 0.
    """
    gates = join_gates(store.gates())
    gates = _in_single(gates)
    if store.kind == "l0":
        strengths = replace(strengths, width_binarise=0.0)
    line, bow = find_prices(store, gates.detach(), strengths)
    if store.kind == "l0":
        width, depth = gates.tensor_split([store.n_width])
        gates = torch.cat([count_expected(width), depth])
    return torch.dot(gates, torch.addcmul(line, bow, gates))


def _in_single(gates: Tensor) -> Tensor:
    """Return gates in float32 at least: in half precision sums and costs may be infinite."""
    return gates if gates.dtype is torch.float64 else gates.float()


def _price_by_hand(site: TriState, strengths: Strengths) -> list[Tensor]:
    if strengths.price is not Price.NEURONS:
        raise InputError(
            f"price is {strengths.price}, but a TriState placed by hand knows nothing of its "
            "neighbours; use Price.NEURONS, or let add_gates place the gates"
        )
    terms: list[Tensor] = []
    is_linear = torch.tensor(False) if site.depth is None else is_open(site.depth)
    if site.width is not None:
        width = _in_single(site.width)
        binarise = strengths.width_binarise * (width * (1 - width)).sum()
        complexity = width.sum() * (~is_linear).to(width)
        terms.append(binarise + strengths.width_cost * complexity)
    if site.depth is not None:
        terms.append(_price_depth(_in_single(site.depth), strengths))
    return terms


def _price_depth(depth: Tensor, strengths: Strengths) -> Tensor:
    binarise = strengths.depth_binarise * depth * (1 - depth)
    return binarise - strengths.depth_cost * depth
