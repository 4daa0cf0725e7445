"""`WeightGates`: gates that act on weights, while the model's `forward` stays the user's own.

A gate multiplies the slices of weights that read its channel. Open, it changes nothing. Closed, it
holds these slices at zero and their values aside, and the channel is read by nobody. Its gradient
is read from the weights behind the backward pass: the sum of weight times gradient over its slices,
with the values aside in place of the weights where it is closed.

A slice that several gates share (a head, an index within all heads) is closed when any of them is,
and counts for one of them only while the others are open.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from archlearn.errors import InputError
from archlearn.gating.channel_slices import Slices
from archlearn.gating.parameter_slices import FIRST_MOMENTS, VALUES, Held, Line, join_slices
from archlearn.gating.weight_groups import GateGroup, find_closed
from archlearn.module_utils import find_module
from archlearn.nn.open_norms import has_open_form, is_open_form, open_form_, set_open_
from archlearn.nn.rms_norm_forms import read_rms_norm

_AT_ONCE = 2**24
"""The most numbers whose products with their gradients are held at the same time."""


class WeightGates:
    """The gates of a model, as they act on its weights.

    Attributes:
        groups: What the gates act on, in the order of the gates.
        is_open: Whether each gate is open, on the CPU.
        left_out: Why the gates of some groups cannot act, by the number of the group.
    """

    def __init__(self, groups: Sequence[GateGroup]) -> None:
        self.groups = tuple(groups)
        self.is_open = torch.ones(sum(g.size for g in groups), dtype=torch.bool, device="cpu")
        self.left_out: dict[int, str] = {}
        self._lines: list[Line] = []
        self._held: list[Held] = []
        self._norms: list[tuple[nn.Module, Tensor]] = []

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what belongs to optimisers: a copy of the model has none yet."""
        return {"groups": self.groups, "state": self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy, to be bound to the copied model."""
        self.__init__(state["groups"])
        self._copied = state["state"]

    _copied: dict[str, Any] | None = None

    def bind_(self, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """Act on the weights of a model, stepped by these optimisers.

        Groups that cannot be read (see `left_out`) stay open. What was closed stays closed.
        """
        state = self._copied or self.state_dict()
        parameters = dict(model.named_parameters())
        stepped = {
            parameter: optimizer
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        trained = {n for n, p in parameters.items() if p.requires_grad and p in stepped}
        self.left_out = _find_left_out(model, self.groups, trained)
        acting = [g for i, g in enumerate(self.groups) if i not in self.left_out]
        self._lines = [
            *join_slices(parameters, (s for g in acting for s in g.readers), reads=True),
            *join_slices(
                {name: parameters[name] for name in trained},
                (s for g in acting for s in g.writers),
                reads=False,
            ),
        ]
        places = {optimizer: number for number, optimizer in enumerate(optimizers)}
        names = {line.parameter for line in self._lines}
        order = sorted(
            (name for name in parameters if name in names),
            key=lambda name: places[stepped[parameters[name]]],
        )
        self._held = [
            Held(
                parameters[name],
                stepped[parameters[name]],
                [x for x in self._lines if x.parameter == name and x.reads],
                [x for x in self._lines if x.parameter == name and not x.reads],
            )
            for name in order
        ]
        self._prepare_sums()
        self._norms = _find_norms(model, acting)
        self._copied = None
        self.load_state_dict(state)

    def _prepare_sums(self) -> None:
        """Settle where the sum over each slice is held, and which sums make each gate's."""
        lines = [line for held in self._held for line in held.readers]
        device = self._held[0].parameter.device if self._held else torch.device("cpu")
        dtypes = [held.parameter.dtype for held in self._held]
        self.dtype = torch.float32
        for dtype in dtypes:
            self.dtype = torch.promote_types(self.dtype, dtype)
        start, none = 0, torch.zeros(0, dtype=torch.long, device="cpu")
        gates, source = [none], [none]
        for line in lines:
            line.start, size = start, line.gates.shape[1]
            gates.append(line.gates.reshape(-1))
            source.append((torch.arange(size, device="cpu") + start).repeat(len(line.gates)))
            start += size
        gate_of, sources = torch.cat(gates), torch.cat(source)
        order = gate_of.argsort(stable=True)
        order = order[gate_of[order] >= 0]
        self._entry_order, self._entry_gate = order, gate_of[order]
        self._source = sources[order].to(device)
        self._lengths = torch.bincount(self._entry_gate, minlength=len(self.is_open)).to(device)
        self._sums = torch.zeros(start, dtype=self.dtype, device=device)
        self._counts: Tensor | None = None

    # ---------------------------------------------------------------- reading gradients

    @torch.no_grad()
    def observe(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Read the gradients of weights, and take those of closed slices out of them.

        Call it behind the backward pass, and in front of clipping. With an optimiser given, those
        of its own parameters.
        """
        chunk, size = list[Held](), 0
        for held in self._held:
            if not held.readers or (optimizer is not None and held.optimizer is not optimizer):
                continue
            if held.parameter.grad is None:
                self._part(held).zero_()
                continue
            chunk.append(held)
            size += held.parameter.numel()
            if size >= _AT_ONCE:
                self._observe(chunk)
                chunk, size = [], 0
        if chunk:
            self._observe(chunk)

    def _part(self, held: Held) -> Tensor:
        """Return where the sums of a parameter's slices are held."""
        n_sums = sum(line.gates.shape[1] for line in held.readers)
        return self._sums.narrow(0, held.readers[0].start, n_sums)

    def _observe(self, chunk: list[Held]) -> None:
        grads = [held.parameter.grad for held in chunk]
        products = torch._foreach_mul([held.parameter for held in chunk], grads)  # pyright: ignore
        for held, product in zip(chunk, products, strict=True):
            sums = [line.sum(product, self.dtype) for line in held.readers]
            if any(line.index is not None for line in held.readers):
                self._add_closed_(held, sums)
            self._part(held).copy_(torch.cat(sums) if len(sums) > 1 else sums[0])

    def _add_closed_(self, held: Held, sums: list[Tensor]) -> None:
        """Put in what closed gates would get, and clear the gradients of their slices."""
        gradient = held.parameter.grad
        assert gradient is not None
        closed = [line for line in held.readers if line.index is not None]
        gradients = {id(line): line.select(gradient) for line in closed}
        for line in closed:
            for other in closed:
                if other is not line:  # where that is closed, too, opening one changes nothing
                    other.fill_(gradients[id(line)])
            product = gradients[id(line)].mul_(line.aside[VALUES])
            index = next(i for i, reader in enumerate(held.readers) if reader is line)
            sums[index].index_copy_(0, line.index, line.sum(product, self.dtype))  # pyright: ignore
        for line in closed:
            line.fill_(gradient)

    def scale_(self, optimizer: torch.optim.Optimizer, scale: Tensor) -> None:
        """Divide what was read of an optimiser's parameters by a factor of their gradients."""
        stepped = [x for x in self._held if x.optimizer is optimizer and x.readers]
        if stepped:
            last = self._part(stepped[-1])
            start, end = stepped[0].readers[0].start, last.storage_offset() + len(last)
            self._sums[start:end].div_(scale.to(self._sums))

    def gradient(self) -> Tensor:
        """Return the gradient of each gate; the sums are in the same order at each run."""
        values = self._sums.index_select(0, self._source)
        if self._counts is not None:
            values = values.mul_(self._counts)
        return torch.segment_reduce(values, "sum", lengths=self._lengths, unsafe=True)

    # ---------------------------------------------------------------- closing and opening

    @torch.no_grad()
    def set_open_(self, is_open: Tensor) -> None:
        """Close and open gates: values go aside, and come back."""
        wanted = is_open.cpu().bool().clone()
        for number in self.left_out:
            group = self.groups[number]
            wanted[group.start : group.start + group.size] = True
        if torch.equal(wanted, self.is_open):
            return
        self.is_open = wanted
        lines = {id(line): ~self._opened(line.gates).all(0) for line in self._lines}
        for held in self._held:
            acting = [*held.readers, *held.writers]
            if any(not torch.equal(lines[id(line)], line.is_closed) for line in acting):
                self._restore_(held)
                for line in acting:
                    self._point_at(line, lines[id(line)], held.parameter.device)
                self._take_aside_(held)
        self._follow_gates()

    def _opened(self, gates: Tensor) -> Tensor:
        return torch.cat([self.is_open, torch.ones(1, dtype=torch.bool, device="cpu")])[gates]

    @staticmethod
    def _point_at(line: Line, is_closed: Tensor, device: torch.device) -> None:
        line.is_closed = is_closed
        index = is_closed.nonzero().flatten()
        line.index, line.aside = (index.to(device) if len(index) else None), {}

    def _restore_(self, held: Held) -> None:
        states = held.states()
        for line in (*held.readers, *held.writers):
            if line.index is None:
                continue
            for key, kept in line.aside.items():
                tensor = held.parameter.data if key == VALUES else states.get(key)
                if tensor is not None:
                    target, dim = line.of(tensor)
                    target.index_copy_(dim, line.index, kept)
            for key in FIRST_MOMENTS & states.keys():
                line.fill_(states[key])

    def _take_aside_(self, held: Held) -> None:
        states = held.states()
        lines = [line for line in (*held.readers, *held.writers) if line.index is not None]
        for line in lines:
            line.aside = {VALUES: line.select(held.parameter.data)}
            for key, state in states.items():
                if key not in FIRST_MOMENTS:
                    line.aside[key] = line.select(state)
        for line in lines:
            for key in FIRST_MOMENTS & states.keys():
                line.fill_(states[key])
            if line.reads:
                line.fill_(held.parameter.data)

    def _follow_gates(self) -> None:
        """Count a slice for a gate only while its other gates are open; tell the norms."""
        for module, gates in self._norms:
            set_open_(module, self._opened(gates).all(0))
        lines = [line for held in self._held for line in held.readers]
        counts: list[Tensor] = [torch.zeros(0, dtype=torch.bool, device="cpu")]
        for line in lines:
            opened = self._opened(line.gates)
            others = [
                torch.cat([opened[:row], opened[row + 1 :]]).all(0) for row in range(len(opened))
            ]
            counts.append(torch.stack(others).reshape(-1))
        entries = torch.cat(counts)[self._entry_order]
        if self._counts is None and not bool(entries.all()):
            self._counts = torch.ones_like(self._sums[:1]).repeat(len(entries))
        if self._counts is not None:
            self._counts.copy_(entries)

    @torch.no_grad()
    def reapply_(self, optimizer: torch.optim.Optimizer | None = None) -> None:
        """Set what is closed to zero again, whatever an optimiser did to it."""
        for held in self._held:
            if optimizer is None or held.optimizer is optimizer:
                for line in held.readers:
                    line.fill_(held.parameter.data)

    # ---------------------------------------------------------------- saving

    def state_dict(self) -> dict[str, Any]:
        """Return which gates are closed, and what lies aside."""
        if self._copied is not None:
            return self._copied
        aside = [
            {"parameter": x.parameter, "dim": x.dim, "reads": x.reads, "tensors": dict(x.aside)}
            for x in self._lines
            if x.index is not None
        ]
        return {"is_open": self.is_open.clone(), "aside": aside}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned; weights and states of optimisers are left alone.

        Raises:
            InputError: If it is of other gates.
        """
        is_open: Tensor = state["is_open"]
        entries = {(e["parameter"], e["dim"], e["reads"]): e for e in state["aside"]}
        if len(is_open) != len(self.is_open):
            raise InputError(
                f"the state is of {len(is_open)} gates where the model has {len(self.is_open)}; "
                "give the state of the same network, with gates added in the same way"
            )
        self.is_open = is_open.cpu().bool().clone()
        devices = {id(x): h.parameter.device for h in self._held for x in (*h.readers, *h.writers)}
        for line in self._lines:
            is_closed = ~self._opened(line.gates).all(0)
            self._point_at(line, is_closed, devices[id(line)])
            if line.index is None:
                continue
            saved = entries.get((line.parameter, line.dim, line.reads))
            n_held = 0 if saved is None else saved["tensors"][VALUES].numel()
            if saved is None or n_held == 0:
                raise InputError(
                    f"the state has no values aside for {line.parameter!r}, of which slices are "
                    "closed; give the state of a GateOptimizer of the same network"
                )
            tensors: dict[str, Tensor] = saved["tensors"]
            line.aside = {key: t.to(devices[id(line)], copy=True) for key, t in tensors.items()}
        self._follow_gates()

    # ---------------------------------------------------------------- reading the weights

    def read_norms_(self, model: nn.Module) -> None:
        """Let norms leave out what the weights of a model say is closed."""
        norms = {name for name, module in model.named_modules() if is_open_form(module)}
        closed = find_closed(model, self.groups, open_norms=norms)
        opened = torch.cat([~closed, torch.ones(1, dtype=torch.bool, device="cpu")])
        for module, gates in _find_norms(model, (g for g in self.groups if g.reason is None)):
            set_open_(module, opened[gates].all(0))

    def find_stray(self, model: nn.Module) -> str | None:
        """Return a parameter that is not zero where its gates are closed."""
        parameters = dict(model.named_parameters())
        for line in self._lines:
            if line.reads and line.index is not None:
                weights = line.select(parameters[line.parameter].detach())
                if bool(weights.any()):
                    return line.parameter
        return None


def open_norms_(model: nn.Module, groups: Iterable[GateGroup]) -> None:
    """Let the norms over learnt streams be over the open channels, which all are."""
    for group in groups:
        modules = [find_module(model, name) for name in group.norms]
        if group.reason is None and not _reads_zeros(modules):
            for module in filter(has_open_form, modules):
                open_form_(module)


def _reads_zeros(modules: Sequence[nn.Module]) -> bool:
    """Return whether norms are RMSNorms: closed channels are zero for these."""
    return all(read_rms_norm(module) is not None for module in modules)


def _follow_norms(model: nn.Module, group: GateGroup) -> bool:
    """Return whether the norms over a group's channels can leave closed ones out."""
    modules = [find_module(model, name) for name in group.norms]
    gated = {s.parameter for s in (*group.readers, *group.writers)}
    return _reads_zeros(modules) or all(
        is_open_form(module) and f"{name}.weight" in gated
        for name, module in zip(group.norms, modules, strict=True)
    )


def _find_left_out(
    model: nn.Module, groups: Sequence[GateGroup], trained: set[str]
) -> dict[int, str]:
    """Return why the gates of some groups cannot act on weights."""
    reasons: dict[int, str] = {}
    for number, group in enumerate(groups):
        frozen = [s.parameter for s in group.readers if s.parameter not in trained]
        if group.reason is not None:
            reasons[number] = group.reason
        elif frozen:
            reasons[number] = (
                f"{frozen[0]} reads it and is frozen, or stepped by no optimizer that was given; "
                "train it, or learn this part without"
            )
        elif not group.readers:
            reasons[number] = "no weight reads it"
        elif group.norms and not _follow_norms(model, group):
            reasons[number] = (
                f"{group.norms[0] or 'forward'!r} normalises over its channels, and cannot leave "
                "closed ones out; use nn.LayerNorm or nn.GroupNorm as modules, with weights"
            )
    return reasons


def _find_norms(model: nn.Module, groups: Iterable[GateGroup]) -> list[tuple[nn.Module, Tensor]]:
    """Return norms over open channels, and the gates of these."""
    slices_of: dict[str, list[Slices]] = {}
    for group in groups:
        for name in group.norms:
            if is_open_form(find_module(model, name)):
                rows = (x for x in (*group.readers, *group.writers) if x.dim == 0)
                weights = [x for x in rows if x.parameter == f"{name}.weight"]
                slices_of.setdefault(name, []).extend(weights)
    parameters = dict(model.named_parameters())
    joined = {
        name: join_slices(parameters, slices, reads=False)[0].gates
        for name, slices in slices_of.items()
    }
    return [(find_module(model, name), gates) for name, gates in joined.items()]
