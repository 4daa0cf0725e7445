"""Parameters and buffers lose the indices that a plan drops; modules learn their new sizes."""

from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from archlearn.surgery.plans import Fold, Narrowing

_NORMS = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm,
    nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d,
)  # fmt: skip


class NarrowedLocalResponseNorm(nn.Module):
    """Local response normalisation among channels at their original distances.

    Channels that are gone were zero; they are put back for the sum, and taken out again, so
    that each neighbour stands where it stood.
    """

    kept: Tensor

    def __init__(
        self, size: int, alpha: float, beta: float, k: float, *, n_original: int, kept: list[int]
    ) -> None:
        super().__init__()
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k
        self.n_original = n_original
        self.register_buffer("kept", torch.tensor(kept))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised channels."""
        shape = (x.shape[0], self.n_original, *x.shape[2:])
        whole = x.new_zeros(shape).index_copy(1, self.kept, x)
        normed = F.local_response_norm(whole, self.size, self.alpha, self.beta, self.k)
        return normed.index_select(1, self.kept)

    def extra_repr(self) -> str:
        """Show the window and the channels."""
        return f"{self.size}, {len(self.kept)} of {self.n_original} channels"


def make_plain_(net: nn.Module, names: Iterable[str]) -> None:
    """Replace weights that are computed (weight_norm, spectral_norm) by their values.

    Torch's own `remove_parametrizations` changes the class that copies of the module share.
    """
    for name in names:
        module: Any = net.get_submodule(name.rpartition(".")[0])
        if parametrize.is_parametrized(module):
            computed = {key: getattr(module, key).detach() for key in module.parametrizations}
            del module.parametrizations
            module.__class__ = type(module).__bases__[0]
            for key, value in computed.items():
                module.register_parameter(key, nn.Parameter(value.clone()))


@torch.no_grad()
def fold_constants_(
    net: nn.Module,
    folds: Iterable[Fold],
    narrowings: Iterable[Narrowing],
    constants: dict[str, Tensor],
) -> None:
    """Move the constants that each layer reads from dropped channels into its bias.

    A bias that a layer already has is narrowed later with all else; a new one is made for the
    rows that stay.
    """
    rows = {n.name: list(n.kept) for n in narrowings if n.dim == 0}
    for fold in folds:
        layer: Any = net.get_submodule(fold.layer)
        summed = layer.weight.flatten(2).sum(2) if layer.weight.dim() > 2 else layer.weight
        columns = list(fold.columns)
        shift = summed[:, columns] @ constants[fold.layer][columns]
        if layer.bias is None:
            kept = rows.get(f"{fold.layer}.weight", list(range(len(shift))))
            layer.bias = nn.Parameter(shift[kept])
        else:
            layer.bias += shift


@torch.no_grad()
def narrow_(net: nn.Module, narrowings: Iterable[Narrowing]) -> None:
    """Keep only the planned indices of parameters and buffers, wherever they are used."""
    made: dict[int, Tensor] = {}
    for name, narrowing in _by_tensor(narrowings).items():
        owner, _, attribute = name.rpartition(".")
        old: Tensor = getattr(net.get_submodule(owner), attribute)
        new = old.detach()
        for each in narrowing:
            new = new.index_select(each.dim, torch.tensor(each.kept, device=new.device))
        is_parameter = isinstance(old, nn.Parameter)
        made[id(old)] = nn.Parameter(new, old.requires_grad) if is_parameter else new
    for module in net.modules():
        for holder in (module._parameters, module._buffers):
            for key, value in holder.items():
                if value is not None and id(value) in made:
                    holder[key] = made[id(value)]  # pyright: ignore[reportArgumentType]
        update_sizes_(module)


def update_sizes_(module: Any) -> None:
    """Let a module's attributes say what its parameters are."""
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
        known = module.weight if module.weight is not None else module.running_mean
        if known is not None:
            module.num_features = len(known)


def _by_tensor(narrowings: Iterable[Narrowing]) -> dict[str, list[Narrowing]]:
    found: dict[str, list[Narrowing]] = {}
    for narrowing in narrowings:
        found.setdefault(narrowing.name, []).append(narrowing)
    return found
