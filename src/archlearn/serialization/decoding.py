"""Rebuilding goes from the description to a model without numbers, then fills them in."""

from collections.abc import Mapping
from warnings import catch_warnings

from torch import Tensor, fx, nn

from archlearn.errors import FileError
from archlearn.serialization.graph_decoding import rebuild_graph
from archlearn.serialization.layer_registry import CONTAINERS, LayerClass
from archlearn.serialization.module_tree import add_tensors_, build_modules, find_module, is_open
from archlearn.serialization.schema import Description, TensorEntry
from archlearn.serialization.values import is_identifier, shorten
from archlearn.tracing.generated_forward import generate_class


def rebuild(description: Description, modules: Mapping[str, LayerClass]) -> nn.Module:
    """Return the described model on the meta device, where it takes no memory for its numbers.

    Raises:
        FileError: If anything in the description is not allowed or does not fit.
    """
    root = build_modules(description, modules)
    add_tensors_(root, description)
    evaluation = rebuild_graph(root, description.evaluation)
    described = description.training_graph
    training = None if described is None else rebuild_graph(root, described)
    if _is_chain(description):
        return root
    return bind(root, description.class_name, evaluation, training)


def fill_(model: nn.Module, description: Description, tensors: Mapping[str, Tensor]) -> None:
    """Give a rebuilt model its numbers, and every module its mode."""
    values = {entry.name: _as_role(entry, tensors[entry.name]) for entry in description.tensors}
    for name, first in [*((name, name) for name in values), *description.shared_tensors.items()]:
        path, _, attribute = name.rpartition(".")
        owner = _existing_module(model, path)
        if name == first:
            owner._parameters.pop(attribute, None)  # so that parameters keep their order
        setattr(owner, attribute, values[first])
    model.training = description.training
    for entry in description.modules:
        module = _existing_module(model, entry.name)
        if is_open(module):  # what is inside has an entry of its own
            module.training = entry.training
        else:
            module.train(entry.training)


def _existing_module(model: nn.Module, path: str) -> nn.Module:
    module = find_module(model, path)
    if module is None:
        raise FileError(f"it names the module {shorten(path)}, which is not there")
    return module


def bind(
    root: nn.Module, class_name: str, evaluation: fx.Graph, training: fx.Graph | None
) -> nn.Module:
    """Return `root` as a model whose `forward` carries the graphs out."""
    if not is_identifier(class_name):
        raise FileError(f"its class is named {shorten(class_name)}, which is not an identifier")
    graphs = [evaluation] if training is None else [evaluation, training]
    try:
        with catch_warnings(action="error", category=SyntaxWarning):
            root.__class__ = generate_class(nn.Module, class_name, graphs, __module__=__name__)
    except Exception as error:
        raise FileError(f"its calls make no function ({shorten(error)})") from error
    return root


def _is_chain(description: Description) -> bool:
    """Return whether the model is a `Sequential` of layers, which needs no other forward."""
    plain = CONTAINERS.keys() - {"torch.nn.Sequential"}
    kinds = [description.kind, *(entry.kind for entry in description.modules)]
    return plain.isdisjoint(kinds)


def _as_role(entry: TensorEntry, tensor: Tensor) -> Tensor:
    if entry.role == "parameter":
        return nn.Parameter(tensor, requires_grad=entry.requires_grad)
    return tensor.requires_grad_(entry.requires_grad)
