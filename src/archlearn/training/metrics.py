"""What the gates say at a moment: widths, depth, costs, and where they are heading."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from archlearn.costs import Costs, count_costs
from archlearn.gating.parameters import depth_gates, width_gates
from archlearn.nn.functional import is_open
from archlearn.surgery.architecture import read_architecture
from archlearn.surgery.planning import plan
from archlearn.training.evaluation import as_format

Gates = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """The architecture as the gates have it now.

    Attributes:
        widths: Channels kept, by layer.
        linear: Whether a depth gate stands at linear, by site.
        gap: Mean distance of gates from binary.
        binary_share: Share of gates within a tenth of 0 or 1.
        costs: What the network would cost, compacted now.
        projected: Parameters at the end if gates go on as in the last epoch; None while that is
            not known, as before they begin to move.
    """

    widths: dict[str, int]
    linear: dict[str, bool]
    gap: float
    binary_share: float
    costs: Costs
    projected: int | None


def read_gates(model: nn.Module) -> tuple[Gates, Gates]:
    """Return copies of width and depth gates on the CPU, in one transfer."""
    width, depth = width_gates(model), depth_gates(model)
    everything = [*width.values(), *depth.values()]
    if not everything:
        return {}, {}
    flat = torch.cat([gate.detach().reshape(-1).float() for gate in everything]).cpu()
    pieces = iter(flat.split([gate.numel() for gate in everything]))
    return {name: next(pieces) for name in width}, {name: next(pieces) for name in depth}


class Observatory:
    """Measures gates on a copy of the model on the CPU, so that training is not disturbed."""

    def __init__(self, model: nn.Module, example: Tensor, pay: str) -> None:
        self._copy = copy.deepcopy(model).cpu()
        self._example = example
        self._pay = pay
        self._known: dict[bytes, tuple[Costs, dict[str, int]]] = {}
        self._last: Tensor | None = None

    def go_on_from(self, width: Gates, depth: Gates) -> None:
        """Take these as the gates of the epoch before, as when a run is resumed."""
        self._last = _flatten(width, depth)

    def measure(self, width: Gates, depth: Gates, epochs_to_move: float) -> Snapshot:
        """Return what the gates say.

        Args:
            width: Width gates, from `read_gates`.
            depth: Depth gates.
            epochs_to_move: Epochs in which gates will still move.
        """
        flat = _flatten(width, depth)
        last = self._last if self._last is not None and self._last.shape == flat.shape else flat
        drift = flat - last
        self._last = flat
        costs, widths = self._look(width, depth)
        distance = torch.minimum(flat, 1 - flat)
        return Snapshot(
            widths=widths,
            linear={name: bool(is_open(gate).item()) for name, gate in depth.items()},
            gap=distance.mean().item() if len(flat) else 0.0,
            binary_share=(distance < 0.1).float().mean().item() if len(flat) else 1.0,
            costs=costs,
            projected=(
                self._project(flat, drift * epochs_to_move, width, depth)
                if epochs_to_move > 0 and len(flat)
                else costs.parameters
            ),
        )

    def _project(self, flat: Tensor, way: Tensor, width: Gates, depth: Gates) -> int | None:
        """Return the parameters after gates have gone a way, or None if none of them moves."""
        if not way.any():
            return None
        return self._look(*_split((flat + way).clamp(0, 1), width, depth))[0].parameters

    def _look(self, width: Gates, depth: Gates) -> tuple[Costs, dict[str, int]]:
        """Return the costs and widths with these gates; the same ones are looked at only once."""
        key = _key(width, depth)
        if key not in self._known:
            self._set_gates_(width, depth)
            costs = self._count() if key else costs_of(self._copy, self._example)
            self._known[key] = costs, self._widths() if width else {}
        return self._known[key]

    @torch.no_grad()
    def _set_gates_(self, width: Gates, depth: Gates) -> None:
        for own, given in ((width_gates(self._copy), width), (depth_gates(self._copy), depth)):
            for name, gate in own.items():
                gate.copy_(given[name].reshape(gate.shape))

    def _count(self) -> Costs:
        return per_example(plan(self._copy, self._example, pay=self._pay).after, self._example)

    def _widths(self) -> dict[str, int]:
        return {layer.name: layer.width for layer in read_architecture(self._copy).layers}


def costs_of(network: nn.Module, example: Tensor) -> Costs:
    """Return the costs of a network as it stands, multiply-adds for one example."""
    return per_example(count_costs(network, in_format_of(network, example)), example)


def in_format_of(network: nn.Module, example: Tensor) -> Tensor:
    """Return inputs in the number format of a network's weights."""
    floating = (p.dtype for p in network.parameters() if p.is_floating_point())
    return as_format(example, next(floating, example.dtype))


def per_example(costs: Costs, example: Tensor) -> Costs:
    """Return costs with the multiply-adds of one example instead of all."""
    return Costs(costs.parameters, costs.multiply_adds // len(example))


def _flatten(width: Gates, depth: Gates) -> Tensor:
    return torch.cat([*width.values(), *depth.values(), torch.empty(0)])


def _split(flat: Tensor, width: Gates, depth: Gates) -> tuple[Gates, Gates]:
    sizes = [gate.numel() for gate in (*width.values(), *depth.values())]
    pieces = iter(flat.split(sizes)) if sizes else iter(())
    return {name: next(pieces) for name in width}, {name: next(pieces) for name in depth}


def _key(width: Mapping[str, Tensor], depth: Mapping[str, Tensor]) -> bytes:
    """Return the binary values of all gates as bytes: costs depend on nothing else."""
    return b"|".join(is_open(gate).numpy().tobytes() for gate in (*width.values(), *depth.values()))
