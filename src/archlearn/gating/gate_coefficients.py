"""What each gate of a model pays: for not being binary, for its neurons, for not being linear."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from archlearn.analysis.cost_model import marginal_costs
from archlearn.gating.container import GateStore
from archlearn.gating.strengths import Price, Strengths
from archlearn.nn.functional import THRESHOLD, can_read, open_flat


class Prices(NamedTuple):
    """A gate `g` pays `g·(line + bow·g)`.

    Attributes:
        line: For each gate `a + b`: what pushes it towards 0 or 1, and what it costs.
        bow: For each gate `−a`.
    """

    line: Tensor
    bow: Tensor


def find_prices(store: GateStore, gates: Tensor, strengths: Strengths) -> Prices:
    """Return what each gate pays now. None of it has a gradient.

    Prices by neurons change only when a layer becomes linear or ceases to be. Where that can be
    seen, they are kept from step to step: on a CPU each operation costs more than the gates.

    Args:
        store: Knows what goes with each gate.
        gates: All gates, one behind the other, without a gradient.
        strengths: How hard each term pulls.
    """
    if strengths.price is not Price.NEURONS or not can_read(gates) or gates.is_inference():
        return _work_out(store, gates, strengths)
    depth = gates[store.n_width :].tolist() if len(gates) > store.n_width else ()
    key = (strengths.numbers(), gates.dtype, [gate >= THRESHOLD for gate in depth])
    kept = store.kept_prices
    if kept is None or kept[0] != key:
        kept = store.kept_prices = key, _work_out(store, gates, strengths)
    return kept[1]


def _work_out(store: GateStore, gates: Tensor, strengths: Strengths) -> Prices:
    neurons, is_depth = store.numbers("prices", gates.dtype)
    linear = store.numbers("linear_neurons", gates.dtype)
    price, paid = neurons, neurons
    if len(linear):
        is_linear = (gates[store.n_width :] >= THRESHOLD).to(linear.dtype)
        paid = neurons - torch.mv(linear.T, is_linear).index_select(0, store.group_of_gate)
    if strengths.price is not Price.NEURONS:
        marginal = F.pad(_marginal_price(store, gates, strengths.price), (0, 1))
        price = marginal.index_select(0, store.group_of_gate)
        paid = price * (paid / (neurons + is_depth))
    width_push = price * -strengths.width_binarise
    bow = torch.sub(width_push, is_depth, alpha=strengths.depth_binarise)
    line = torch.sub(paid * strengths.width_cost, bow)
    return Prices(torch.sub(line, is_depth, alpha=strengths.depth_cost), bow)


def _marginal_price(store: GateStore, gates: Tensor, price: Price) -> Tensor:
    """Return what one more channel of each group costs at the current widths, mean one."""
    table = store.cost_table(gates.dtype)
    by_parameters = price is Price.PARAMETERS
    coefficients = table.parameters if by_parameters else table.multiply_adds
    groups = store.group_of_gate[: store.n_width]
    opened = open_flat(gates[: store.n_width], store.rows).to(coefficients.dtype)
    kept = gates.new_zeros(len(store.rows)).index_add_(0, groups, opened)
    cost = marginal_costs(table, kept, coefficients)
    return cost / cost[groups].mean()
