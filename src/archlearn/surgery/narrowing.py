"""Carry a plan out: slice parameters, fold constants into biases, merge layers, remove branches."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn

from archlearn.analysis.channel_labels import line_along
from archlearn.analysis.linear_ops import is_called_again
from archlearn.analysis.mergeable_layers import MergeablePair
from archlearn.gating.selection import LearnableSites
from archlearn.module_utils import find_module, find_tensor, list_tensors
from archlearn.nn.tristate_activation import TriState
from archlearn.op_table import spec_of_class
from archlearn.surgery.merging import fold_batch_norm, merge_convolutions, merge_linear
from archlearn.surgery.plan import Narrowing, Plan
from archlearn.tracing.block_hooks import MARKS
from archlearn.tracing.generated_forward import MODE_READERS
from archlearn.tracing.symbolic_trace import ExampleInputs
from archlearn.verification.precision import exchanging, to_float64


@torch.no_grad()
def find_shifts(gated: nn.Module, plan: Plan, inputs: ExampleInputs) -> dict[str, Tensor]:
    """Return in double precision by how much constants of dropped channels shift each layer."""
    if not plan.folds:
        return {}
    shifts: dict[str, Tensor] = {}
    with exchanging(to_float64(gated)):
        constants = _read_constants(gated, plan, inputs.to(torch.float64, floating_only=True))
        for fold in plan.folds:
            weight: Tensor = find_module(gated, fold.layer).weight.detach()  # pyright: ignore
            summed = weight.flatten(2).sum(2) if weight.dim() > 2 else weight
            columns = list(fold.columns)
            shifts[fold.layer] = summed[:, columns] @ constants[fold.layer][columns]
    return shifts


def _read_constants(gated: nn.Module, plan: Plan, inputs: ExampleInputs) -> dict[str, Tensor]:
    """Return what each folding layer reads, one number a channel."""
    constants: dict[str, Tensor] = {}

    def note(layer: str) -> Any:
        return lambda module, args: constants.update(
            # a copy: an activation behind this layer may change what it reads, in place
            {layer: line_along(args[0].detach(), 1 - module.weight.dim()).clone()}
        )

    handles = [
        find_module(gated, fold.layer).register_forward_pre_hook(note(fold.layer))
        for fold in plan.folds
    ]
    try:
        gated(*inputs.args, **inputs.kwargs)
    finally:
        for handle in handles:
            handle.remove()
    return constants


@torch.no_grad()
def shift_biases_(
    net: nn.Module, shifts: dict[str, Tensor], narrowings: Iterable[Narrowing]
) -> None:
    """Add to the biases of narrowed layers what constants shift them by."""
    rows = {n.name: list(n.kept) for n in narrowings if n.dim == 0}
    for name, shift in shifts.items():
        layer: Any = find_module(net, name)
        kept = shift[rows.get(f"{name}.weight", list(range(len(shift))))]
        if layer.bias is None:
            layer.bias = nn.Parameter(kept.clone(), layer.weight.requires_grad)
        else:
            layer.bias += kept


@torch.no_grad()
def narrowed_tensors(net: nn.Module, narrowings: Iterable[Narrowing]) -> dict[int, Any]:
    """Return the planned parameters and buffers, as a memo for a deep copy of the model.

    So the copy has them wherever the original had the whole ones, and those are not copied.
    """
    narrowed: dict[int, Any] = {}
    indices: dict[Any, Tensor] = {}  # by identity: to look at a thousand numbers takes long
    by_tensor: dict[str, list[Narrowing]] = {}
    for item in narrowings:
        by_tensor.setdefault(item.name, []).append(item)
    for name, narrowing in by_tensor.items():
        old = find_tensor(net, name)
        kept: dict[int, Tensor] = {}
        for item in narrowing:
            key = (id(item.kept), old.device)
            if key not in indices:
                indices[key] = torch.tensor(item.kept, device=old.device)
            kept[item.dim] = indices[key]
        new = select_kept(old.detach(), kept)
        kind = type(old) if issubclass(type(old), nn.Parameter) else nn.Parameter
        narrowed[id(old)] = kind(new, old.requires_grad) if isinstance(old, nn.Parameter) else new
    return narrowed


def select_kept(tensor: Tensor, kept: Mapping[int, Tensor]) -> Tensor:
    """Return the indices that are kept along each dimension, laid out in memory as they were."""
    selected = tensor
    if set(kept) == {0, 1}:  # at once, for what lies in between would be large
        selected = tensor[kept[0][:, None], kept[1]]
    else:
        for dim, places in kept.items():
            selected = selected.index_select(dim, places)
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    if layout is None:
        return selected.contiguous()
    # With one channel a tensor is contiguous in both layouts, and its strides alone tell which.
    strides = torch.empty_like(tensor, device="meta", memory_format=layout).stride()
    is_last = tensor.stride() == strides
    return selected.clone(memory_format=layout if is_last else torch.contiguous_format)


_GATES_OF_CELLS: dict[type[nn.Module], int] = {nn.LSTMCell: 4, nn.GRUCell: 3, nn.RNNCell: 1}


def update_sizes_(net: nn.Module) -> None:
    """Let the attributes of all modules say what their parameters are."""
    modules: list[Any] = list(net.modules())
    for module in modules:
        if isinstance(module, nn.Linear):
            module.out_features, module.in_features = module.weight.shape
        elif isinstance(module, nn.modules.conv._ConvTransposeNd):
            module.in_channels = module.weight.shape[0]
            module.out_channels = module.weight.shape[1] * module.groups
        elif isinstance(module, nn.modules.conv._ConvNd):
            module.out_channels = module.weight.shape[0]
            module.in_channels = module.weight.shape[1] * module.groups
        elif isinstance(module, nn.RNNBase):
            n_rows, module.input_size = find_tensor(module, "weight_ih_l0").shape
            module.hidden_size = n_rows // {"LSTM": 4, "GRU": 3}.get(module.mode, 1)
            module.proj_size = module.proj_size and len(find_tensor(module, "weight_hr_l0"))
            module.flatten_parameters()
        elif type(module) in _GATES_OF_CELLS:
            weight = module._parameters["weight_ih"]
            if weight is not None:  # or else the sum that it is in has lost it
                n_rows, module.input_size = weight.shape
                module.hidden_size = n_rows // _GATES_OF_CELLS[type(module)]
        elif isinstance(module, nn.Embedding | nn.EmbeddingBag):
            module.embedding_dim = module.weight.shape[1]
        elif isinstance(module, nn.LayerNorm | nn.RMSNorm) and module.elementwise_affine:
            module.normalized_shape = tuple(module.weight.shape)
        elif (spec := spec_of_class(type(module))) is not None and spec.sized_by:
            tensors = [getattr(module, name, None) for name in ("weight", "running_mean")]
            for sized in [tensor for tensor in tensors if tensor is not None][:1]:
                setattr(module, spec.sized_by, len(sized))


def apply_merges_(
    net: nn.Module, plan: Plan, learnable: LearnableSites, graphs: list[fx.Graph]
) -> bool:
    """Merge layers as a plan says, then leave out what has become linear.

    Where all calls concerned are modules called once, `nn.Identity` takes their place, and the
    user's own `forward` still serves; otherwise the graph changes, which is returned.
    """
    changed = False
    merges = [merge for merge in plan.merges if merge.made]
    merged = {site for merge in merges for site in merge.sites}
    for merge in merges:
        mergeable = [learnable.mergeable[site] for site in merge.sites]
        layer: Any = find_module(net, mergeable[0].first)
        for pair in mergeable:
            layer = _join(net, layer, pair)
        for index, graph in enumerate(graphs):
            names = [name for pair in mergeable for name in pair.nodes[index]]
            changed |= _leave_out_(net, graph, names)
        net.set_submodule(mergeable[0].first, layer)
    linear = set(plan.linear) - merged
    for graph, sites in zip(graphs, learnable.channel_graph.sites, strict=True):
        names = [site.node for site in sites if site.name in linear]
        changed |= _leave_out_(net, graph, names)
    for name, module in list(net.named_modules()):
        if isinstance(module, TriState):
            net.set_submodule(name, module.activation)
    return changed


def _join(net: nn.Module, layer: Any, pair: MergeablePair) -> Any:
    for norm in pair.norms:
        layer = fold_batch_norm(layer, find_module(net, norm))
    second: Any = find_module(net, pair.second)
    merge = merge_linear if isinstance(layer, nn.Linear) else merge_convolutions
    return merge(layer, second)


def _leave_out_(net: nn.Module, graph: fx.Graph, names: Iterable[str]) -> bool:
    """Let calls of a graph be passed by; return whether `forward` would go on making one."""
    changed, by_name = False, {node.name: node for node in graph.nodes}
    for node in [by_name[name] for name in names if name in by_name]:
        if node.op == "call_module" and not is_called_again(node):
            net.set_submodule(str(node.target), nn.Identity())
        else:
            changed = True
        node.replace_all_uses_with(node.all_input_nodes[0])
        graph.erase_node(node)
    return changed


def remove_tensors_(net: nn.Module, removed: Iterable[str], graphs: Iterable[fx.Graph]) -> None:
    """Take parameters and buffers away; a module that is left with none becomes `nn.Identity`.

    A module that some graph still calls, or whose part it calls, stays without them, and so does
    a block whose hooks it calls.
    """
    gone = {id(find_tensor(net, name)) for name in removed}
    if not gone:
        return
    nodes = [node for graph in graphs for node in graph.nodes]
    names = [node.target for node in nodes if node.op == "call_module"]
    names += [node.args[1] for node in nodes if node.target in MARKS]
    called = {find_module(net, str(name)) for name in names}
    _remove_(net, gone, called)
    left = dict(net.named_modules(remove_duplicate=False))
    readers = [name for name in getattr(net, MODE_READERS, ()) if name in left]
    setattr(net, MODE_READERS, tuple(readers))


def _remove_(module: nn.Module, gone: set[int], called: set[nn.Module]) -> None:
    for held in (module._parameters, module._buffers):
        for name, tensor in held.items():
            if id(tensor) in gone:
                held[name] = None
    for name, child in module._modules.items():
        if child is None:
            continue
        tensors = [id(tensor) for _, tensor in list_tensors(child)]
        if tensors and gone.issuperset(tensors) and called.isdisjoint(child.modules()):
            module._modules[name] = nn.Identity()
        else:
            _remove_(child, gone, called)
