"""Parameters and buffers lose the indices that a plan drops; modules learn their new sizes."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from archlearn.module_utils import find_module, find_tensor
from archlearn.surgery.plan import Fold, Narrowing

_NORMS = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm,
    nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d,
)  # fmt: skip


@torch.no_grad()
def read_shifts(
    net: nn.Module, folds: Iterable[Fold], constants: dict[str, Tensor]
) -> dict[str, Tensor]:
    """Return by how much constants from dropped channels shift the output of each layer."""
    shifts: dict[str, Tensor] = {}
    for fold in folds:
        weight: Tensor = find_module(net, fold.layer).weight.detach()  # pyright: ignore
        summed = weight.flatten(2).sum(2) if weight.dim() > 2 else weight
        columns = list(fold.columns)
        shifts[fold.layer] = summed[:, columns] @ constants[fold.layer][columns]
    return shifts


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
    made: dict[int, Any] = {}
    known: dict[Any, Tensor] = {}  # by identity: to look at a thousand numbers takes long
    for name, narrowing in _by_tensor(narrowings).items():
        old = find_tensor(net, name)
        kept: dict[int, Tensor] = {}
        for each in narrowing:
            key = (id(each.kept), old.device)
            if key not in known:
                known[key] = torch.tensor(each.kept, device=old.device)
            kept[each.dim] = known[key]
        new = _select(old.detach(), kept).contiguous(memory_format=_layout_of(old))
        is_parameter = isinstance(old, nn.Parameter)
        made[id(old)] = nn.Parameter(new, old.requires_grad) if is_parameter else new
    return made


def _select(tensor: Tensor, kept: Mapping[int, Tensor]) -> Tensor:
    """Return the indices that are kept along each dimension."""
    if set(kept) == {0, 1}:  # at once, for what lies in between would be large
        return tensor[kept[0][:, None], kept[1]]
    for dim, places in kept.items():
        tensor = tensor.index_select(dim, places)
    return tensor


def _layout_of(tensor: Tensor) -> torch.memory_format:
    """Return how a tensor lies in memory: channels last if it was put so, else row by row."""
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    is_last = layout is not None and tensor.is_contiguous(memory_format=layout)
    return layout if layout and is_last and not tensor.is_contiguous() else torch.contiguous_format


def update_sizes_(net: nn.Module) -> None:
    """Let the attributes of all modules say what their parameters are."""
    for module in net.modules():
        _update_sizes_(module)


def _update_sizes_(module: Any) -> None:
    if isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif isinstance(module, nn.modules.conv._ConvTransposeNd):
        module.in_channels = module.weight.shape[0]
        module.out_channels = module.weight.shape[1] * module.groups
    elif isinstance(module, nn.modules.conv._ConvNd):
        module.out_channels = module.weight.shape[0]
        module.in_channels = module.weight.shape[1] * module.groups
    elif isinstance(module, nn.PReLU):
        module.num_parameters = module.weight.numel()
    elif isinstance(module, _NORMS):
        tensors: list[Tensor | None] = [module.weight, module.running_mean]
        known = next((tensor for tensor in tensors if tensor is not None), None)
        if known is not None:
            module.num_features = len(known)


def _by_tensor(narrowings: Iterable[Narrowing]) -> dict[str, list[Narrowing]]:
    found: dict[str, list[Narrowing]] = {}
    for narrowing in narrowings:
        found.setdefault(narrowing.name, []).append(narrowing)
    return found
