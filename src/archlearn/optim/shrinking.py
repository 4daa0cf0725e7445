"""`shrink_`: cut channels that are closed for good out of a model while it is trained.

The model and its parameters stay the objects they are, since trainers, loggers and optimisers hold
them: each parameter gets the slice of its numbers that stays, and so does all that optimisers keep
for it. A branch that is closed for good is not computed any more; two channels of its layers stay
in the model, without gradients. `compact` removes them, and merges layers that have become linear.
"""

import copy
import logging
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

import torch
from torch import Tensor, nn

from archlearn.analysis.original_channels import KEPT
from archlearn.errors import InputError, SurgeryError, check_kind
from archlearn.gating.attach import bind_gates_, let_stand_
from archlearn.gating.cost_counter import place_inputs
from archlearn.gating.gate_container import CONTAINER, LEFT_OUT, STANDING, GateContainer, gate_key
from archlearn.gating.selection import reselect_sites
from archlearn.module_utils import (
    check_unsharded,
    evaluating,
    find_module,
    find_tensor,
    modes_of,
    set_modes_,
    without_cudnn_benchmark,
    without_hooks,
)
from archlearn.nn.functional import is_open, open_gates
from archlearn.nn.norms import NarrowedLocalResponseNorm
from archlearn.optim.cost_function import CostFunction
from archlearn.optim.data_parallel import renew_wrappers_
from archlearn.optim.gate_limits import find_gated
from archlearn.optim.gate_optimizer import GateOptimizer
from archlearn.surgery.compaction import apply_plan
from archlearn.surgery.decision import Decision
from archlearn.surgery.narrowing import select_kept
from archlearn.surgery.plan import Plan
from archlearn.surgery.planning import find_sliceable, write_plan
from archlearn.tracing.block_hooks import advise_on_difference, without_marks
from archlearn.tracing.generated_forward import check_forwards, class_forwards
from archlearn.tracing.trace_context import without_autocast
from archlearn.verification.certificate import TOLERANCES, compare_in_both_modes

Kept = dict[int, Tensor]
"""The indices that are kept along each dimension of a tensor that loses some."""
_MIXING = (
    *("adamp", "dadapt", "lamb", "lars", "lbfgs", "muon", "novograd", "prodigy", "sgdp"),
    *("shampoo", "soap"),
)
"""Parts of names of optimisers whose update of one number depends on others, as by a norm."""
_log = logging.getLogger(__name__)


@torch.inference_mode(False)
@torch.no_grad()
@without_autocast()
@without_cudnn_benchmark()
def shrink_(
    model: nn.Module,
    *optimizers: Any,
    copies: nn.Module | Iterable[nn.Module] = (),
    like: Mapping[str, Any] | None = None,
) -> None:
    """Cut the channels that are closed for good out of a model and its optimisers, in place.

    The model computes what it computed, in both modes (dropout draws other masks), and what stays
    is updated next as it would have been. With a `GateOptimizer` among the optimisers, channels go
    that it never opens again; without one, all that are closed. Branches that are closed so are not
    computed any more, and their weights get no gradients. Channels stay that leave a constant
    behind (a BatchNorm follows their gate) or live in weights that are computed (weight_norm), and
    two of each group; `compact` removes them at the end. `DistributedDataParallel` around the model
    is set up anew, in place: call it in all processes.

    Args:
        model: A model from `add_gates`, or one that contains such a model.
        optimizers: All optimisers of the model, for weights and for gates.
        copies: A copy of the model, such as `torch.optim.swa_utils.AveragedModel`, or several.
            They lose the same channels, and take its gates, even where nothing is cut out.
        like: A `state_dict` of a model that was shrunk: cut what is not in it, so that it can be
            loaded. All gates count as closed that it has not.

    Raises:
        InputError: If an optimiser keeps what cannot be sliced, or one was not given.
        SurgeryError: If the smaller model would not be the same function. Nothing has changed then.
    """
    owner = find_gated(model)
    check_forwards(owner, "shrink_")
    check_unsharded(
        owner,
        "and shrink_ needs it whole; train on without shrink_, and compact at the end, or use "
        "DistributedDataParallel in place of fully_shard",
    )
    inner = [_unwrap_optimizer(optimizer) for optimizer in optimizers]
    if any(isinstance(o, GateOptimizer) and not o.learns(owner) for o in inner):
        raise InputError(
            f"a GateOptimizer learns the gates of another model than this {type(owner).__name__}; "
            "give shrink_ the one that was made for this model"
        )
    models: Any = [copies] if isinstance(copies, nn.Module) else copies
    check_kind("copies", models, Iterable, "give a list of models: copies=[ema]")
    followers = [find_gated(copied) for copied in models]
    container: GateContainer = getattr(owner, CONTAINER)
    if container.on_weights is not None:
        raise InputError(
            "shrink_ does not cut models whose gates act on weights yet; train on without it, and "
            'call compact at the end, or leave on="weights" out'
        )
    if like is None:
        container.check_standing()
    else:
        check_kind("like", like, Mapping, "give the state_dict of a model that was shrunk")
    kept = _find_kept(owner, container, inner) if like is None else _read_kept(container, like)
    for follower in followers:
        _check_copy(owner, follower)
    if kept.is_all_of(container):
        for follower in followers:
            gates: GateContainer = getattr(follower, CONTAINER)
            if gates.standing and not container.standing:
                let_stand_(follower, gates, torch.zeros_like(gates.kept.get_buffer(STANDING)))
            _copy_gates_(container, gates)
        return
    with class_forwards(owner):
        cut = _prepare(owner, container, kept, is_same=like is None)
    _check_optimizers(owner, cut, inner)
    sliced = [_slice_states(owner, cut, o, is_loading=like is not None) for o in inner]
    before = sum(parameter.numel() for parameter in owner.parameters())
    _note_cut_(owner, cut, like)
    for follower in followers:
        device = getattr(follower, CONTAINER).gates()[0].device
        _transplant_(follower, cut, copy.deepcopy(getattr(cut.small, CONTAINER)).to(device))
    _transplant_(owner, cut, getattr(cut.small, CONTAINER))
    for states in sliced:
        for state, new in states:
            state.update(new)
    for optimizer in inner:
        if isinstance(optimizer, GateOptimizer):
            optimizer.follow_model()
    renew_wrappers_(owner)
    compiler: Any = sys.modules.get("torch._dynamo.utils")
    if compiler is not None and compiler.counters["frames"]:
        # Programs of the larger network would count towards torch.compile's recompile limit.
        torch.compiler.reset()
    after = sum(parameter.numel() for parameter in owner.parameters())
    _log.info("shrunk from %s to %s parameters", f"{before:,}", f"{after:,}")


def try_shrink_(
    model: nn.Module, *optimizers: Any, gates: GateOptimizer, copies: Iterable[nn.Module] = ()
) -> bool:
    """Shrink a model where that pays; return whether it did.

    One that cannot be cut trains on as large as it is, which is said once and not tried again.
    """
    if not gates.can_shrink():
        return False
    try:
        shrink_(model, *optimizers, gates, copies=copies)
    except (InputError, SurgeryError) as error:
        gates.stop_shrinking()
        _log.warning("the network stays as large as it is while it is trained: %s", error)
        return False
    return True


@dataclass(frozen=True, slots=True)
class _Rest:
    """What is left.

    Attributes:
        stays: Which gates of each group stay.
        left_out: The branches that do not.
        standing: Which of the gates that stay need not act any more; None if all must.
        orders: Which channel of each head each gate stands for, as `GateContainer.orders`.
    """

    stays: dict[str, Tensor]
    left_out: tuple[str, ...]
    standing: Tensor | None
    orders: dict[str, Tensor]

    def is_all_of(self, container: GateContainer) -> bool:
        """Return whether nothing is to be cut out, left out or passed over that is not already."""
        flags: Any = getattr(container.kept, STANDING, None)
        is_noted = self.standing is None or (
            flags is not None and torch.equal(flags.cpu(), self.standing.cpu())
        )
        is_whole = all(bool(stay.all()) for stay in self.stays.values())
        return is_whole and self.left_out == container.left_out() and is_noted


@dataclass(frozen=True, slots=True)
class _Cut:
    """The smaller model, a copy with gates, and what was narrowed in it.

    Beside it what is kept of each tensor that loses something, and of the gates of each group.
    """

    small: nn.Module
    plan: Plan
    kept: dict[str, Kept]
    places: dict[str, Tensor]


def _find_kept(
    owner: nn.Module, container: GateContainer, optimizers: list[torch.optim.Optimizer]
) -> _Rest:
    """Return what stays, of each group two gates at least: all that is not closed for good."""
    learners = [optimizer for optimizer in optimizers if isinstance(optimizer, GateOptimizer)]
    if learners:
        closed, branches = learners[0].closed_for_good(), learners[0].branches_closed_for_good()
    else:
        can_go = find_sliceable(owner, container.channel_graph)
        closed: dict[str, Tensor] = {}
        groups, gates = container.channel_graph.groups, container.width_gates().values()
        for group, gate in zip(groups, gates, strict=True):
            is_closed = open_gates(gate, group.least).cpu() < 0.5
            closed[group.name] = is_closed & can_go[group.channels]
        branches = [n for n, gate in container.branch_gates().items() if not bool(is_open(gate))]
    left_out = {*branches, *container.left_out()}
    in_order = tuple(name for name in container.learnable.branches if name in left_out)
    stays = {name: _keep_two(~gone.cpu()) for name, gone in closed.items()}
    is_still = bool(learners) and learners[0].can_stand_still()
    standing = _find_standing(container, stays) if is_still else None
    return _Rest(stays, in_order, standing, container.orders())


def _find_standing(container: GateContainer, stays: dict[str, Tensor]) -> Tensor:
    """Return which gates a `forward` can do without: open ones, and those of layers that stay."""
    widths = [
        bool(is_open(gate).cpu()[stays[n]].all()) for n, gate in container.width_gates().items()
    ]
    depths = [not bool(is_open(gate)) for gate in container.depth_gates().values()]
    branches = [bool(is_open(gate)) for gate in container.branch_gates().values()]
    return torch.tensor([*widths, *depths, *branches], device="cpu").long()


def _keep_two(stays: Tensor) -> Tensor:
    """Return what stays of a group; one channel alone would be no group, and its gate be lost."""
    if int(stays.sum()) < 2:
        stays[torch.nonzero(~stays).flatten()[: 2 - int(stays.sum())]] = True
    return stays


def _read_kept(container: GateContainer, state: Mapping[str, Any]) -> _Rest:
    """Return what a `state_dict` still has."""
    kept: dict[str, Tensor] = {}
    for name, positions in container.original_places().items():
        saved = _find_saved(state, f"kept.{gate_key(name)}")
        stays = torch.ones(len(positions), dtype=torch.bool, device="cpu")
        if saved is not None:
            stays = torch.isin(positions.cpu(), saved.cpu())
        if saved is not None and int(stays.sum()) != len(saved):
            raise InputError(
                f"the state_dict has channels of {name!r} that have been cut out of this model; "
                "call shrink_ on a model that has them still"
            )
        kept[name] = stays
    flags = _find_saved(state, f"kept.{LEFT_OUT}")
    left_out = () if flags is None else compress(container.learnable.branches, flags.tolist())
    orders = {name: _read_order(container, name, kept, state) for name in container.orders()}
    return _Rest(kept, tuple(left_out), _find_saved(state, f"kept.{STANDING}"), orders)


def _find_saved(state: Mapping[str, Any], key: str) -> Any:
    """Return what a `state_dict` has under a name of the gates', or None."""
    return next((v for name, v in state.items() if name.endswith(f"{CONTAINER}.{key}")), None)


def _read_order(
    container: GateContainer, name: str, stays: dict[str, Tensor], state: Mapping[str, Any]
) -> Tensor:
    """Return the order of a group in which gates that stay stand for what a `state_dict` has."""
    order = container.orders()[name].cpu().clone()
    saved = _find_saved(state, f"order.{gate_key(name)}")
    if saved is None:
        return order
    heads = torch.nonzero(_stays_of_heads(container, name, stays)).flatten()
    for head, row in zip(heads, saved.cpu(), strict=True):
        rest = order[head][~torch.isin(order[head], row)]
        order[head, stays[name]], order[head, ~stays[name]] = row, rest
    return order


def _stays_of_heads(container: GateContainer, name: str, stays: dict[str, Tensor]) -> Tensor:
    """Return which heads of a group stay."""
    channel_graph = container.channel_graph
    group = next(group for group in channel_graph.groups if group.name == name)
    kept = torch.ones(len(channel_graph.root), dtype=torch.bool, device="cpu")
    for other in channel_graph.groups:
        kept[other.channels] = stays[other.name]
    return kept[group.heads]


def _prepare(owner: nn.Module, container: GateContainer, rest: _Rest, *, is_same: bool) -> _Cut:
    """Return a smaller copy of the model with gates, and what was kept; nothing is changed."""
    channel_graph, stays = container.channel_graph, rest.stays
    gone = (~stays[group.name] for group in channel_graph.groups)
    dropped = container.find_dropped(gone, rest.orders)
    modes, inputs = modes_of(owner), place_inputs(owner, channel_graph.inputs)
    with evaluating(owner):
        decision = Decision(container.learnable, dropped, ())
        plan = write_plan(owner, decision, "parameters")
        small, graphs, changed = apply_plan(owner, decision, plan)
        plain = [without_marks(graph) for graph in graphs]
        traces = replace(channel_graph.traces, graphs=tuple(plain))
        try:
            learnable = reselect_sites(small, inputs, container.learnable, traces, dropped)
        except SurgeryError:  # a hook registered since, which the comparison below takes part in
            with without_hooks(small):
                learnable = reselect_sites(small, inputs, container.learnable, traces, dropped)
        fresh = GateContainer(learnable, 1.0, 0.0, was_bound=changed)
        fresh.leave_out_(rest.left_out)
        places = {name: torch.nonzero(stay).flatten() for name, stay in stays.items()}
        _copy_gates_(container, fresh, places)
        heads = {n: torch.nonzero(_stays_of_heads(container, n, stays)) for n in rest.orders}
        in_heads = {name: {0: rows.flatten(), 1: places[name]} for name, rows in heads.items()}
        for name, order in fresh.orders().items():
            order.copy_(select_kept(rest.orders[name].cpu(), in_heads[name]))
        if rest.standing is not None:
            fresh.stand_still_(rest.standing)
        bind_gates_(small, fresh)
        gap = compare_in_both_modes(owner, small, inputs) if is_same else 0.0
    if not gap <= TOLERANCES[torch.float64]:
        raise SurgeryError(
            f"cannot shrink {type(owner).__name__}: the smaller model differs by {gap:.1e} in "
            f"float64; {advise_on_difference(owner)}, or train on without shrink_"
        )
    set_modes_(small, modes)
    kept: dict[str, Kept] = {}
    for cut in plan.narrowings:
        device = find_tensor(owner, cut.name).device
        kept.setdefault(cut.name, {})[cut.dim] = torch.tensor(cut.kept, device=device)
    for name, gate in container.width_gates().items():
        if len(places[name]) < len(gate):
            key = f"{CONTAINER}.width.{gate_key(name)}"
            kept[key] = {0: places[name].to(gate.device)}
    for name, probe in container.probes().items():
        indices = {dim: index.to(probe.device) for dim, index in in_heads[name].items()}
        kept[f"{CONTAINER}.probe.{gate_key(name)}"] = indices
    return _Cut(small, plan, kept, places)


def _copy_gates_(
    container: GateContainer, fresh: GateContainer, places: dict[str, Tensor] | None = None
) -> None:
    """Copy all gates, or of each group of channels those at the given places."""
    for name, gate in fresh.width_gates().items():
        old = container.width_gates()[name]
        gate.copy_(old if places is None else old[places[name].to(gate.device)])
        gate.requires_grad_(old.requires_grad)
    for find in (GateContainer.depth_gates, GateContainer.branch_gates):
        for name, gate in find(fresh).items():
            old = find(container)[name]
            gate.copy_(old)
            gate.requires_grad_(old.requires_grad)
    if fresh.n_depth:
        fresh.slope.copy_(container.slope)
    for name, probe in fresh.probes().items():
        probe.requires_grad_(container.probes()[name].requires_grad)
        if places is None:
            fresh.orders()[name].copy_(container.orders()[name])


def _check_optimizers(owner: nn.Module, cut: _Cut, optimizers: list[torch.optim.Optimizer]) -> None:
    """Raise if an optimiser that is needed was not given, or cannot follow."""
    for optimizer in optimizers:
        names = [kind.__name__.lower() for kind in type(optimizer).__mro__]
        if any(word in name for word in _MIXING for name in names):
            raise InputError(
                f"cannot shrink with {type(optimizer).__name__}: its update of a number depends on "
                "others, so what stays would be updated otherwise; use an optimiser that goes "
                "number by number, such as SGD or AdamW, or train on without shrink_"
            )
    learnt = {p for o in optimizers for group in o.param_groups for p in group["params"]}
    for name in cut.kept if optimizers else ():
        tensor = find_tensor(owner, name)
        is_weight = not name.startswith(CONTAINER)
        if is_weight and tensor.requires_grad and tensor not in learnt:
            raise InputError(
                f"{name!r} would lose channels, but is in none of the optimisers given; give all "
                "of them: archlearn.shrink_(model, optimizer, gates)"
            )


def _slice_states(
    owner: nn.Module, cut: _Cut, optimizer: torch.optim.Optimizer, *, is_loading: bool
) -> list[tuple[dict[str, Any], dict[str, Tensor]]]:
    """Return what an optimiser keeps for parameters that lose something, and the slices of it."""
    sliced: list[tuple[dict[str, Any], dict[str, Tensor]]] = []
    for name, kept in cut.kept.items():
        parameter = find_tensor(owner, name)
        state: dict[str, Any] = optimizer.state.get(parameter, {})
        new: dict[str, Tensor] = {}
        for key, value in state.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                new[key] = select_kept(value, kept)
            elif not _is_single(value):
                shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                advice = "use an optimiser such as SGD or AdamW, or train on without shrink_"
                if is_loading:
                    advice = "load states of optimisers behind shrink_(..., like=state_dict)"
                raise InputError(
                    f"cannot shrink with {type(optimizer).__name__}: its {key!r} for {name!r} is "
                    f"{shape}, not {tuple(parameter.shape)}, so it cannot be cut index by index; "
                    f"{advice}"
                )
        sliced.append((state, new))
    return sliced


def _is_single(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1
    return value is None or isinstance(value, bool | int | float)


def _check_copy(owner: nn.Module, follower: nn.Module) -> None:
    shapes = [(name, p.shape) for name, p in owner.named_parameters()]
    if shapes != [(name, p.shape) for name, p in follower.named_parameters()]:
        raise InputError(
            f"a copy, {type(follower).__name__}, has other parameters than the model; give copies "
            "of the gated model, and shrink them with it each time"
        )


def _note_cut_(owner: nn.Module, cut: _Cut, like: Mapping[str, Any] | None) -> None:
    """Take down in the new gates what is left of the old ones."""
    old: GateContainer = getattr(owner, CONTAINER)
    new: GateContainer = getattr(cut.small, CONTAINER)
    places = {
        name: positions[cut.places[name].to(positions.device)]
        for name, positions in old.original_places().items()
    }
    n_shrinks = old.n_shrinks + 1
    if like is not None:
        saved = _find_saved(like, "shrinks")
        n_shrinks = n_shrinks if saved is None else int(saved)
    new.note_cut_(places, torch.tensor(n_shrinks, device=old.gates()[0].device))
    new.original_costs = old.original_costs or CostFunction(owner, old.learnable).extremes()[0]
    new.original_sizes, new.original_widths = old.original_sizes, old.original_widths
    new.budget, new.n_loads, new.n_learners = old.budget, old.n_loads, old.n_learners


def _transplant_(target: nn.Module, cut: _Cut, gates: GateContainer) -> None:
    """Make a model what the smaller one is; its modules and parameters stay the same objects."""
    container: GateContainer = getattr(target, CONTAINER)
    for name, kept in cut.kept.items():
        _set_numbers_(find_tensor(target, name), kept)
    homes = [(part.width, part.depth, part.branch, part.probe) for part in (container, gates)]
    for home, new_home in zip(*homes, strict=True):
        for key, gate in new_home.named_parameters():
            parameter: Any = getattr(home, key)
            parameter.copy_(gate)
            if not gate.requires_grad:
                parameter.requires_grad_(False)
                parameter.grad = None
            new_home.register_parameter(key, parameter)
    own_attributes: dict[str, Any] = container.__dict__
    own_attributes.update(vars(gates))
    modules = dict(target.named_modules())
    for name, new in cut.small.named_modules():
        old = modules.get(name)
        is_local = isinstance(new, NarrowedLocalResponseNorm)  # which holds places of channels
        if name == CONTAINER or name.startswith(f"{CONTAINER}."):
            continue
        if old is None or (name and type(old) is not type(new)) or is_local:
            parent, _, key = name.rpartition(".")
            find_module(target, parent).add_module(key, copy.deepcopy(new))
            continue
        for key, value in vars(new).items():
            is_size = type(value) is int or key == "normalized_shape"
            if is_size and vars(old).get(key) != value:
                setattr(old, key, value)
    for key, buffer in cut.small._buffers.items():
        if key not in target._buffers and buffer is not None:
            target.register_buffer(key, buffer.clone())
    left_out = gates.learnable.branch_places(gates.left_out())
    for name in gates.learnable.removals.gone_tensors(left_out):
        tensor = find_tensor(target, name)
        tensor.grad = None
        tensor.requires_grad_(False)  # or DistributedDataParallel would wait for its gradient
    setattr(target, KEPT, cut.plan.kept(getattr(target, KEPT, None)))
    new_class: Any = type(cut.small)
    new_class.forward = type(target).forward  # Accelerate and torch.compile may hold it
    target.__class__ = new_class


def _set_numbers_(tensor: Tensor, kept: Kept) -> None:
    """Give a tensor, and its gradient, the slice of its numbers that stays.

    That of an averaged copy may lie on another device than the model.
    """
    kept = {dim: index.to(tensor.device) for dim, index in kept.items()}
    gradient, tensor.grad = tensor.grad, None
    new = select_kept(tensor.detach(), kept)
    # Autograd remembers the shape of a parameter while the graph of the last loss lives; another
    # type in between makes it forget.
    other = torch.float32 if tensor.dtype is torch.float64 else torch.float64
    tensor.data = tensor.new_empty(0, dtype=other)
    tensor.data = new
    if gradient is not None:
        tensor.grad = select_kept(gradient, kept)


def _unwrap_optimizer(optimizer: Any) -> torch.optim.Optimizer:
    """Return the optimiser inside Accelerate's or Fabric's."""
    inner = getattr(optimizer, "optimizer", optimizer)
    if not isinstance(inner, torch.optim.Optimizer):
        raise InputError(
            f"{type(optimizer).__name__} is no optimiser; give shrink_ the model and all its "
            "optimisers; schedulers and scalers need nothing"
        )
    return inner
