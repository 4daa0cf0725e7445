"""Compact models of transformers: as a folder for `from_pretrained`, or in the original's class."""

import copy
import json
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from archlearn.errors import FileError, InputError, check_installed, first_line
from archlearn.export.config_sizes import Shapes, read_settings
from archlearn.gating.cost_counter import EXAMPLE, known_inputs, place_inputs
from archlearn.gating.gate_container import find_container
from archlearn.module_utils import evaluating
from archlearn.serialization import save
from archlearn.surgery.narrowing import update_sizes_
from archlearn.tracing.example_inputs import ExampleInputs, check_given
from archlearn.tracing.generated_forward import forward_graphs, user_class
from archlearn.tracing.transformer_blocks import with_attention_mask

FILE = "archlearn.safetensors"
_NO_FOLDER = (
    "from_pretrained could not read a folder of this {}: {}; or keep our own file: save_pretrained("
    "small, folder, own_file=True) of archlearn.export.pretrained_folder"
)
CONFIG = "config.json"
_N_TOKENS = 8


@dataclass(frozen=True, slots=True)
class SavedFolder:
    """What a folder holds.

    Attributes:
        path: The folder.
        is_pretrained: Whether `from_pretrained` reads it; else `archlearn.load` reads a file in it.
        reason: Which sizes the config says, or why it cannot say them.
    """

    path: Path
    is_pretrained: bool
    reason: str

    def __str__(self) -> str:
        if self.is_pretrained:
            return f"{self.path}: read it with from_pretrained ({self.reason})"
        return f"{self.path / FILE}: read it with archlearn.load ({self.reason})"


def save_pretrained(
    model: nn.Module,
    folder: str | PathLike[str],
    original: str | PathLike[str] | None = None,
    example_inputs: object = None,
    *,
    own_file: bool = False,
) -> SavedFolder:
    """Write a compact model of transformers as a folder that `AutoModel.from_pretrained` reads.

    All sizes must fit the model's own config: every block equally wide, as with
    `GateOptimizer(..., equal_blocks=True)`.

    Args:
        model: A model from `compact`, of a class of transformers, or from `load`.
        folder: Where to write; it is made if it is not there.
        original: A folder with the `config.json` of the model that was gated; one from `load`
            has no config. Nothing is downloaded, and no code in the folder is run.
        example_inputs: Arguments for one call; a compact model knows its own.
        own_file: Whether sizes that no config can say are written as a file of `archlearn.save` in
            the folder instead.

    Raises:
        InputError: If the model has gates, is not one of transformers, or its config is another's.
        FileError: If its config cannot say the sizes, and `own_file` is not set.
    """
    path = Path(folder)
    kind, config = _find_original(model, original)
    try:
        fitted, reason = _fit(model, kind, config, example_inputs)
    except FileError as error:
        if not own_file:
            raise FileError(_NO_FOLDER.format(kind.__name__, error)) from None
        path.mkdir(parents=True, exist_ok=True)
        save(model, path / FILE)
        return SavedFolder(path, is_pretrained=False, reason=str(error))
    path.mkdir(parents=True, exist_ok=True)
    fitted.save_pretrained(path)
    return SavedFolder(path, is_pretrained=True, reason=reason)


def to_transformers(
    model: nn.Module,
    original: str | PathLike[str] | None = None,
    example_inputs: object = None,
) -> Any:
    """Return a compact model in the class of transformers that it had, whose own forward runs it.

    So `generate` works, with its cache of keys and values. The layers may have different widths;
    where the config cannot say them it keeps the original's, and `save_pretrained` of what is
    returned raises, because `from_pretrained` could not read the folder.

    Args:
        model: As for `save_pretrained`, and so are the others.
        original: A folder with the original's `config.json`, for a model from `load`.
        example_inputs: Arguments for one call, on which both must agree.

    Raises:
        InputError: If the own forward cannot hold the sizes, as where a layer has gone, or the
            model is not one of transformers.
    """
    kind, config = _find_original(model, original)
    try:
        fitted = _fit_widths(model, kind, config, example_inputs)
    except FileError as error:
        raise InputError(
            f"the own forward of {kind.__name__} does not fit the compact model ({error}); learn "
            "no more than the widths of its MLPs and embeddings, and whole heads (Learn.HEADS), by "
            "their names in learn="
        ) from None
    if getattr(model, "is_gradient_checkpointing", False):
        fitted.gradient_checkpointing_enable()
    settings = _find_generation(model, original)
    if settings is not None:
        settings.use_cache = True
        fitted.generation_config = settings
    return fitted.train(model.training)


def _find_generation(model: nn.Module, original: str | PathLike[str] | None) -> Any:
    """Return the settings of `generate` that a model has, or a folder; None without any."""
    if original is not None and (Path(original) / "generation_config.json").is_file():
        from transformers import GenerationConfig

        return GenerationConfig.from_pretrained(original)
    return copy.deepcopy(getattr(model, "generation_config", None))


def _find_original(model: Any, original: str | PathLike[str] | None) -> tuple[type[nn.Module], Any]:
    """Return the class of transformers that a model had, and its config."""
    if find_container(model) is not None:
        raise InputError("the model still has gates; give what archlearn.compact(model) returns")
    if original is not None:
        return _read_original(model, Path(original))
    if hasattr(model, "config") and hasattr(model, "save_pretrained"):
        return user_class(model), model.config
    raise InputError(
        f"{type(model).__name__} is no model of transformers; write it with archlearn.save "
        "or, if archlearn.load read it, name the folder with its config.json as original="
    )


def _read_original(model: nn.Module, folder: Path) -> tuple[type[nn.Module], Any]:
    """Return the class of transformers that a loaded model had, and the config in a folder.

    The class is that of the file: a config may name another, as that of a model before training.
    """
    if not (folder / CONFIG).is_file():
        raise InputError(
            f"there is no {CONFIG} in {folder}; name the folder of the model that was gated, as "
            "save_pretrained or a checkpoint of the Trainer wrote it"
        )
    check_installed("a folder for from_pretrained", "transformers", "transformers")
    import transformers

    name = type(model).__name__.removeprefix("Compact")
    kind: Any = getattr(transformers, name, None)
    if not (isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel)):
        raise InputError(
            f"{name} is no model of transformers {transformers.__version__}, so no config says its "
            "sizes; keep the file of archlearn.save, or export the model in another format"
        )
    try:
        settings = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{folder / CONFIG} is not JSON ({first_line(error)}); copy it again"
        ) from error
    settings = settings if isinstance(settings, dict) else {}
    config_class: Any = kind.config_class
    if settings.get("model_type") != config_class.model_type:
        raise InputError(
            f"{folder / CONFIG} is that of a {settings.get('model_type')!r}, but {name} has one of "
            f"a {config_class.model_type!r}; name the folder of the model that was gated"
        )
    try:
        return kind, config_class.from_dict(settings)
    except Exception as error:  # whatever transformers says to settings that it does not know
        raise InputError(
            f"{folder / CONFIG} makes no {config_class.__name__} ({first_line(error)}); name the "
            "folder of the model that was gated"
        ) from error


def _make_inputs(model: nn.Module, config: Any) -> ExampleInputs:
    """Return two random rows for a loaded model, under the names that its file asks for."""
    nodes = [node for graph in forward_graphs(model)[:1] for node in graph.nodes]
    names = [str(node.args[1]) for node in nodes if node.target is check_given]
    names += [str(node.target) for node in nodes if node.op == "placeholder" and not node.args]
    example = {n: _make_input(n, config) for n in names if n != "labels" and not n.startswith("*")}
    attempts = [example]
    if "labels" in names:  # of rows, of tokens, or numbers to predict
        labels = (
            torch.zeros(2, device="cpu").long(),
            torch.zeros(2, _N_TOKENS, device="cpu").long(),
            torch.zeros(2, device="cpu"),
        )
        attempts = [example | {"labels": label} for label in labels]
    failures: list[str] = []
    for attempt in attempts:
        inputs = place_inputs(model, ExampleInputs((), attempt))
        try:
            with torch.no_grad(), evaluating(model):
                model(**inputs.kwargs)
        except Exception as error:
            failures.append(first_line(error))
        else:
            return inputs
    raise InputError(
        f"{type(model).__name__} does not run on made-up inputs ({failures[0]}); {_BY_HAND}"
    )


_BY_HAND = (
    "give inputs of yours in Python, as example_inputs=... of save_pretrained or to_transformers "
    "in archlearn.export.pretrained_folder"
)


def _make_input(name: str, config: Any) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    if name.endswith("input_ids") and hasattr(config, "vocab_size"):
        return torch.randint(config.vocab_size, (2, _N_TOKENS), generator=generator, device="cpu")
    if name == "token_type_ids":
        return torch.zeros(2, _N_TOKENS, dtype=torch.long, device="cpu")
    if name == "pixel_values" and hasattr(config, "image_size"):
        size = config.image_size
        space = (size, size) if isinstance(size, int) else tuple(size)
        return torch.randn(
            2, getattr(config, "num_channels", 3), *space, generator=generator, device="cpu"
        )
    raise InputError(f"the model was gated with {name!r}, which cannot be made up; {_BY_HAND}")


def _fit_widths(
    model: nn.Module, kind: type[nn.Module], config: Any, example_inputs: object
) -> Any:
    """Return an ordinary model with the same weights, whatever widths its layers have."""
    try:
        return _fit(model, kind, config, example_inputs)[0]
    except FileError as error:
        if model.state_dict().keys() != _shapes(kind, config).keys():
            raise
        fitted: Any = _with_weights(kind, config, model)
        _check(model, fitted, _find_inputs(model, config, example_inputs), "these widths")
        fitted.save_pretrained = partial(_refuse_folder, _NO_FOLDER.format(kind.__name__, error))
        return fitted


def _refuse_folder(text: str, *_: object, **__: object) -> NoReturn:
    raise FileError(text)


def _fit(
    model: nn.Module, kind: type[nn.Module], config: Any, example_inputs: object
) -> tuple[Any, str]:
    """Return an ordinary model with the same weights, and which settings its config says."""
    sizes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    settings = read_settings(config, _shapes(kind, config), sizes)
    changed = (
        ", ".join(f"{name}={size}" for name, size in settings.items()) or "no size has changed"
    )
    trial = _set(config, settings)
    try:
        type(trial).from_dict(trial.to_dict())
    except Exception as error:  # whatever transformers says to settings that do not fit
        last = str(error).splitlines()[-1].strip()
        raise FileError(f"its config may not say {changed}: {last}") from error
    shapes = _shapes(kind, trial)
    for name, size in sizes.items():
        if shapes.get(name) != size:
            raise FileError(
                f"of a {config.model_type!r} no setting is known that says that {name!r} is {size}:"
                f" with {changed} it is {shapes.get(name)}"
            )
    fitted = _with_weights(kind, trial, model)
    _check(model, fitted, _find_inputs(model, config, example_inputs), changed)
    return fitted, changed


def _set(config: Any, settings: dict[str, int]) -> Any:
    """Return a config with other settings."""
    config = copy.deepcopy(config)
    for name, size in settings.items():
        setattr(config, name, size)
    return config


def _find_inputs(model: nn.Module, config: Any, example_inputs: object) -> ExampleInputs:
    if example_inputs is None and not hasattr(model, EXAMPLE):
        example_inputs = _make_inputs(model, config)
    return known_inputs(model, example_inputs)


def _with_weights(kind: Any, config: Any, model: nn.Module) -> nn.Module:
    """Return an ordinary model with copies of these weights, whatever widths its config says."""
    config = copy.deepcopy(config)
    if hasattr(config, "use_cache"):  # which gated models, and so compact ones, go without
        config.use_cache = True
    rebuilt: nn.Module = kind(config)
    rows = [(module, _count_rows(module)) for module in rebuilt.modules()]
    copies: dict[int, Tensor] = {}  # by identity: what was shared stays so
    tensors = model.state_dict(keep_vars=True)
    # Frequencies of rotary embeddings, in no state_dict, may have another dtype than the weights.
    buffers = dict(model.named_buffers())
    tensors |= {name: buffers[name] for name, _ in rebuilt.named_buffers() if name in buffers}
    for name, tensor in tensors.items():
        owner, _, leaf = name.rpartition(".")
        setattr(rebuilt.get_submodule(owner), leaf, copy.deepcopy(tensor, copies))
    update_sizes_(rebuilt)
    for module, before in rows:
        _update_heads_(module, before)
    return rebuilt


def _count_rows(module: nn.Module) -> list[int]:
    """Return how many rows the layers of queries and of keys have; 0 for others."""
    layers = [getattr(module, f"{name}_proj", getattr(module, name, None)) for name in "qk"]
    return [len(layer.weight) if isinstance(layer, nn.Linear) else 0 for layer in layers]


def _update_heads_(module: Any, before: list[int]) -> None:
    """Let attention say how many heads it has, where it does not read that off its tensors."""
    if type(module).__name__ == "Conv1D":  # the linear layer of GPT-2
        module.nx, module.nf = module.weight.shape
    elif hasattr(module, "c_attn") and hasattr(module, "split_size"):
        module.split_size = len(module.c_proj.weight)
    elif all(before) and (now := _count_rows(module)) != before:
        queries, keys = map(Fraction, now, before)
        sizes = dict.fromkeys(("num_heads", "num_attention_heads", "n_heads", "inner_dim"), queries)
        sizes |= {"num_key_value_heads": keys, "num_key_value_groups": queries / keys}
        for name in sizes.keys() & vars(module).keys():
            setattr(module, name, int(getattr(module, name) * sizes[name]))


def _shapes(kind: type[nn.Module], config: Any) -> Shapes:
    """Return the shapes that a model of this config has; none if there is no such model."""
    try:
        with torch.device("meta"):
            rebuilt = kind(config)
    except Exception:  # whatever a config says to sizes that do not go together
        return {}
    return {name: tuple(tensor.shape) for name, tensor in rebuilt.state_dict().items()}


def _check(model: nn.Module, fitted: nn.Module, inputs: ExampleInputs, changed: str) -> None:
    """Raise unless the ordinary model computes the same."""
    fitted.to(next(model.parameters()).device)
    try:
        with torch.no_grad(), evaluating(model, fitted):
            for example in _with_padding(with_attention_mask(fitted, inputs)):
                pair = [net(*example.args, **example.kwargs) for net in (model, fitted)]
                ours, theirs = ([t for t in y.values() if isinstance(t, Tensor)] for y in pair)
                for one, other in zip(ours, theirs, strict=True):
                    torch.testing.assert_close(one, other)
    except Exception as error:
        raise FileError(
            f"an ordinary model with {changed} does not compute the same: {first_line(error)}"
        ) from error


def _with_padding(inputs: ExampleInputs) -> list[ExampleInputs]:
    """Return inputs, and others whose mask hides the last token: attention takes another path."""
    mask = inputs.kwargs.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.dim() != 2 or mask.shape[1] < 2:
        return [inputs]
    padded = mask.clone()
    padded[:, -1] = 0
    return [inputs, ExampleInputs(inputs.args, {**inputs.kwargs, "attention_mask": padded})]
