"""Find modules and tensors by name; copy a model; switch modes for a while; computed weights.

torch copies no tensor that was computed with gradients. A weight that `weight_norm` computes before
each call is one, and so is what a module keeps to be looked at: such tensors are copied without.
"""

import copy
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize, prune, remove_spectral_norm, remove_weight_norm
from torch.nn.utils.spectral_norm import SpectralNorm, SpectralNormLoadStateDictPreHook
from torch.nn.utils.weight_norm import WeightNorm
from torch.utils._pytree import tree_leaves

from archlearn.errors import InputError, first_line


@contextmanager
def evaluating(*models: nn.Module) -> Generator[None]:
    """Put models into evaluation mode for a while; each submodule gets its own mode back."""
    modes = [(module, module.training) for model in models for module in model.modules()]
    try:
        if any(training or _sets_mode(module) for module, training in modes):
            for model in models:
                model.eval()
        yield
    finally:
        for module, training in modes:
            if module.training is not training:
                module.training = training


@contextmanager
def without_cudnn_benchmark() -> Generator[None]:
    """Let cuDNN take convolutions as they come: trying several is for shapes met very often."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _sets_mode(module: nn.Module) -> bool:
    """Return whether a module does more than torch's own when it is put into another mode."""
    cls = type(module)
    return cls.train is not nn.Module.train or cls.eval is not nn.Module.eval


def modes_of(model: nn.Module) -> dict[str, bool]:
    """Return whether each submodule is in training mode, by name."""
    return {name: module.training for name, module in model.named_modules()}


def set_modes_(model: nn.Module, modes: Mapping[str, bool]) -> None:
    """Put a model into the mode of another one, and submodules of the same name into theirs."""
    model.train(modes[""])
    for name, module in model.named_modules():
        module.training = modes.get(name, modes[""])


class ModeReads:
    """Notices whether anything asks a module for its mode while a network is traced, and which."""

    def __init__(self) -> None:
        self.seen = False
        self.readers: set[nn.Module] = set()

    def __get__(self, module: Any, owner: type) -> Any:
        if module is None:
            raise AttributeError("training")
        self.seen = True
        self.readers.add(module)
        return vars(module)["training"]

    def __set__(self, module: Any, training: bool) -> None:
        vars(module)["training"] = training


@contextmanager
def noticing_mode_reads(net: nn.Module) -> Generator[ModeReads]:
    """Notice every read of `training`, as torch.fx notices every call: on the class itself.

    A module with a `train` of its own may keep its mode elsewhere; that counts as a read.
    """
    reads = ModeReads()
    cls: Any = nn.Module
    cls.training = reads
    try:
        yield reads
    finally:
        if vars(cls).get("training") is reads:
            del cls.training
        reads.seen |= any(type(module).train is not nn.Module.train for module in net.modules())


@contextmanager
def unnoticed() -> Generator[None]:
    """Let reads of `training` pass that are not made by a `forward` that is traced."""
    reads = vars(nn.Module).get("training")
    if not isinstance(reads, ModeReads):
        yield
        return
    before = reads.seen, set(reads.readers)
    try:
        yield
    finally:
        reads.seen, reads.readers = before


_NOT_COPIED = (TypeError, RuntimeError, copy.Error)


def copy_model(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return a deep copy; tensors that were computed with gradients are copied without.

    `memo` is what is copied already, by identity, as for `copy.deepcopy`.

    Raises:
        InputError: If an attribute cannot be copied, as a lock or an open file.
    """
    copies = dict(memo or {})
    for leaf in tree_leaves([vars(module) for module in model.modules()]):
        if isinstance(leaf, Tensor) and not leaf.is_leaf:
            copies.setdefault(id(leaf), leaf.detach().clone())
    before = dict(copies)
    try:
        copied = copy.deepcopy(model, copies)
        for _, tensor in tensors_of(model):  # what a user noted on parameters, torch leaves out
            for note, value in vars(tensor).items() if id(tensor) in copies else ():
                vars(copies[id(tensor)])[note] = _copy_note(value, copies)
    except _NOT_COPIED as error:
        raise InputError(
            f"{type(model).__name__} cannot be copied{_find_uncopied(model, before)}: "
            f"{first_line(error)}; take away what Python cannot copy (a lock, an open file, a "
            "generator), and give it back to the model that is returned"
        ) from error
    return copied


def _copy_note(value: Any, copies: dict[int, Any]) -> Any:
    """Return a copy, or what cannot be copied as it is: a group of processes, say."""
    try:
        return copy.deepcopy(value, copies)
    except _NOT_COPIED:
        return value


def _find_uncopied(model: nn.Module, memo: dict[int, Any]) -> str:
    """Return the first attribute of a module that cannot be copied, for a message."""
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            try:
                if attribute != "_modules":
                    copy.deepcopy(value, dict(memo))
            except _NOT_COPIED:
                return f" for its {'.'.join(filter(None, (name, attribute)))}"
    return ""


def find_part(net: nn.Module, path: str) -> nn.Module | None:
    """Return the submodule of a path such as "body.0", or None; no property is evaluated."""
    part: nn.Module | None = net
    for name in path.split(".") if path else ():
        part = None if part is None else part._modules.get(name)
    return part


def find_module(net: nn.Module, name: str) -> nn.Module:
    """Return the submodule of that name."""
    module = find_part(net, name)
    return net.get_submodule(name) if module is None else module


def has_hooks(module: nn.Module) -> bool:
    """Return whether something of the user's runs before or after the module's `forward`."""
    before = module._forward_pre_hooks
    return bool(module._forward_hooks or (before and not all(map(is_weight_hook, before.values()))))


@contextmanager
def without_hooks(model: nn.Module) -> Generator[None]:
    """Set the user's forward hooks of all modules aside; those that compute weights stay."""
    kinds = ("_forward_hooks", "_forward_pre_hooks")
    saved = [(module, {kind: vars(module)[kind] for kind in kinds}) for module in model.modules()]
    for module, hooks in saved:
        for kind, registered in hooks.items():
            kept = {key: hook for key, hook in registered.items() if is_weight_hook(hook)}
            vars(module)[kind] = OrderedDict(kept)
    try:
        yield
    finally:
        for module, hooks in saved:
            vars(module).update(hooks)


def find_tensor(net: nn.Module, name: str) -> Tensor:
    """Return the parameter or buffer of that name (also one that is computed)."""
    owner, _, attribute = name.rpartition(".")
    module = find_module(net, owner)
    if attribute in computed_names(module):
        return compute_weights(module)[attribute]
    return getattr(module, attribute)


def find_reference(net: nn.Module) -> Tensor | None:
    """Return a parameter that says where a model is, and in which precision it computes.

    Complex parameters and integers say nothing about the latter.
    """
    parameters = list(net.parameters())
    return next((p for p in parameters if p.is_floating_point()), next(iter(parameters), None))


def first_names(net: nn.Module) -> dict[str, str]:
    """Return the first name of each parameter and buffer, by all its names."""
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    for name, tensor in list_tensors(net):
        names[name] = first.setdefault(id(tensor), name)
    return names


def sharing_layers(net: nn.Module) -> frozenset[str]:
    """Return the names of modules with a parameter that another module holds, too."""
    holders = Counter(
        id(parameter)
        for module in net.modules()
        for parameter in module._parameters.values()
        if parameter is not None
    )
    shared = {key for key, n in holders.items() if n > 1}
    if not shared:
        return frozenset()
    named = net.named_modules(remove_duplicate=False)
    return frozenset(
        name for name, module in named if any(id(p) in shared for p in module.parameters())
    )


def check_made(net: nn.Module) -> None:
    """Refuse a model whose weights are made at its first call."""
    for name, tensor in list_tensors(net):
        if is_lazy(tensor):
            raise InputError(
                f"{name!r} has no shape yet, because its module is a lazy one; call the model once "
                "on the example inputs, which gives it its weights"
            )


def check_numbers(tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Refuse tensors of a model that are on the meta device."""
    for name, tensor in tensors:
        if tensor.is_meta:
            raise InputError(
                f"{name!r} is on the meta device, without numbers; make the model where it is to "
                "be, or call model.to_empty(device=...) and load its state_dict first"
            )


def check_unsharded(net: nn.Module, advice: str) -> None:
    """Refuse a model with parameters that `fully_shard` has spread over processes."""
    for name, parameter in net.named_parameters():
        if hasattr(parameter, "full_tensor"):
            raise InputError(f"{name!r} is spread over processes by fully_shard, {advice}")


def tensors_of(net: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the parameters and buffers of a model, each once, by its first name."""
    return [*net.named_parameters(), *net.named_buffers()]


def list_tensors(net: nn.Module) -> list[tuple[str, Tensor]]:
    """Return all parameters, then all buffers, each by all its names."""
    parameters = net.named_parameters(remove_duplicate=False)
    return [*parameters, *net.named_buffers(remove_duplicate=False)]


EXCHANGES_UNDER_WAY = [0]  # how many exchanges are under way


def is_exchanged() -> bool:
    """Return whether models run in another precision than their own now."""
    return EXCHANGES_UNDER_WAY[0] > 0


def is_weight_hook(hook: object) -> bool:
    """Return whether a forward pre-hook is one of torch's that compute a weight."""
    return isinstance(hook, WeightNorm | SpectralNorm | prune.BasePruningMethod)


@contextmanager
def noticing_calls(model: nn.Module) -> Generator[list[str]]:
    """Yield a list that gets the name of each module of a model that is called meanwhile."""
    called: list[str] = []

    def note(name: str) -> Callable[..., None]:
        return lambda *_: called.append(name)

    handles = [
        module.register_forward_pre_hook(note(name or type(model).__name__))
        for name, module in model.named_modules()
        if not isinstance(module, torch.jit.ScriptModule)  # takes none
    ]
    try:
        yield called
    finally:
        for handle in handles:
            handle.remove()


def computes_weights(module: nn.Module) -> bool:
    """Return whether a module holds a weight that is computed from others."""
    hooks = module._forward_pre_hooks.values()
    return "parametrizations" in module._modules or any(map(is_weight_hook, hooks))


def computed_names(module: Any) -> list[str]:
    """Return the attributes of a module that are computed."""
    names = list(module.parametrizations) if parametrize.is_parametrized(module) else []
    return names + [_name_of(hook) for hook in _weight_hooks(module)]


@torch.no_grad()
def compute_weights(module: nn.Module) -> dict[str, Tensor]:
    """Return computed weights as they are now, by attribute."""
    # Some are computed otherwise in training mode, and move buffers then.
    with unnoticed(), evaluating(module):
        weights = {name: getattr(module, name) for name in computed_names(module)}
        return weights | {_name_of(hook): _compute(hook, module) for hook in _weight_hooks(module)}


def weight_sources(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that a module's weights are computed from, by name."""
    prefixes = ("parametrizations.",)
    ends = ("_g", "_v", "_orig")
    hooked = {f"{_name_of(hook)}{end}" for hook in _weight_hooks(module) for end in ends}
    return {
        name: parameter
        for name, parameter in module.named_parameters()
        if name.startswith(prefixes) or name in hooked
    }


def make_plain_(module: Any) -> None:
    """Replace weights that are computed by their values.

    Torch's own `remove_parametrizations` changes the class that copies of the module share.
    """
    computed = compute_weights(module)
    learns = any(parameter.requires_grad for parameter in weight_sources(module).values())
    for hook in _weight_hooks(module):
        name = _name_of(hook)
        if isinstance(hook, prune.BasePruningMethod):
            prune.remove(module, name)
        else:
            remove = remove_weight_norm if isinstance(hook, WeightNorm) else remove_spectral_norm
            remove(module, name)
    for key, wrapped in list(module._load_state_dict_pre_hooks.items()):
        hook = getattr(wrapped, "hook", None)
        is_of_weight_norm = getattr(hook, "__name__", "") == "_weight_norm_compat_hook"
        if is_of_weight_norm or isinstance(hook, SpectralNormLoadStateDictPreHook):
            # Torch leaves them there, and the former cannot be pickled.
            del module._load_state_dict_pre_hooks[key]
    if parametrize.is_parametrized(module):
        del module.parametrizations
        module.__class__ = type(module).__bases__[0]
    for name, value in computed.items():
        setattr(module, name, nn.Parameter(value.clone(), learns))


def _weight_hooks(module: nn.Module) -> list[Any]:
    return [hook for hook in module._forward_pre_hooks.values() if is_weight_hook(hook)]


def _name_of(hook: Any) -> str:
    return hook._tensor_name if isinstance(hook, prune.BasePruningMethod) else hook.name


def _compute(hook: Any, module: nn.Module) -> Tensor:
    if isinstance(hook, prune.BasePruningMethod):
        return hook.apply_mask(module)
    if isinstance(hook, SpectralNorm):
        return hook.compute_weight(module, do_power_iteration=False)
    return hook.compute_weight(module)
