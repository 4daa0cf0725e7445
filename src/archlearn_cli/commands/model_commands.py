"""`archlearn inspect`, `compact`, `evaluate`, `export`, `data`: one model, or one data set."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

import archlearn as al
import archlearn_cli as cli
from archlearn.costs import CostName
from archlearn.errors import InputError, SettingsError
from archlearn_cli.data.file_cache import CONFIG, SPEED, SUMMARY, no_progress
from archlearn_cli.training.settings import RunSettings

if TYPE_CHECKING:
    from torch import Tensor, nn

    from archlearn_cli.training.metrics import Score

INSPECT_EXAMPLES = """Examples:

    archlearn inspect lenet
    archlearn inspect mypackage.net:build --shape 3x224x224 --outputs 1000
    archlearn inspect resnet20 --data cifar-10
    archlearn inspect gpt --shape 128 --outputs 65
    archlearn inspect runs/a
"""


def inspect_command(
    model: str = "lenet",
    /,
    *,
    data: str | None = None,
    shape: str = "1x28x28",
    outputs: Annotated[int, Parameter(validator=Number(gte=1))] = 10,
    skip_broken: bool = False,
) -> None:
    """Show every layer of a network: what can be learnt of it, what not, and why.

    Args:
        model: A built-in network, package.module:function, or a run's folder.
        data: Take shape and outputs from this data set.
        shape: Shape of one example, as 3x32x32.
        outputs: Number of classes, or of numbers to predict.
        skip_broken: Leave broken images out, naming each, instead of stopping.
    """
    from rich.text import Text

    from archlearn_cli.commands.display import print_wide
    from archlearn_cli.training.initial_model import run_once
    from archlearn_cli.training.objectives import in_format_of
    from archlearn_cli.training.run_directory import read_run_settings

    dataset = None
    if (Path(model) / CONFIG).is_file():
        settings = read_run_settings(Path(model))
        model, dataset = settings.model, cli.training.load_dataset(settings, no_progress)
    elif os.sep in model and not Path(model).exists() and ":" not in model:
        raise SettingsError(
            f"there is neither a run's folder {model!r} nor a model of that name; give a run's "
            "folder, a built-in network or package.module:function"
        )
    elif Path(model).exists() and os.sep in model:
        raise SettingsError(
            f"{model} holds no run; inspect takes a run's folder, a built-in network or "
            "package.module:function"
        )
    elif data is not None:
        examples = cli.data.load_examples(data, skip_broken=skip_broken)
        dataset = cli.data.build_dataset(examples, validation_share=0.1)
    if dataset is not None:
        network = cli.models.build_network(model, dataset.input_shape, dataset.n_outputs)
        inputs = cli.training.objective_of(dataset).inputs(dataset.train.inputs[:2])
        example = in_format_of(network, inputs)
    else:
        network = cli.models.build_network(model, parse_shape(shape), outputs)
        example = _make_example(network, parse_shape(shape))
    try:
        run_once(network, example, model)
    except InputError as error:
        raise InputError(f"{error}; choose another with --shape, or take it from --data") from error
    print_wide(Text(str(al.inspect(network, example))))


def parse_shape(text: str) -> tuple[int, ...]:
    """Return the sizes of a shape such as 3x32x32."""
    parts = text.lower().split("x")
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise SettingsError(f"--shape {text!r} is no shape; write 1x28x28 or 10")
    return tuple(int(part) for part in parts)


COMPACT_EXAMPLES = """Examples:

    archlearn compact runs/a
    archlearn compact runs/a --budget parameters=10000 --out small.safetensors
    archlearn compact runs/a --budget multiply_adds=50% --multiple-of 8 \\
      --out small.safetensors
"""


def compact_command(
    run: Path,
    /,
    *,
    out: Path | None = None,
    pay: CostName | None = None,
    budget: tuple[str, ...] = (),
    multiple_of: Annotated[int, Parameter(validator=Number(gte=1))] = 1,
) -> None:
    """Compact the network of a run as its last checkpoint has it, finished or not.

    Args:
        run: The run's folder.
        out: The file to write. [default: compact.safetensors in the run's folder]
        pay: A linear layer is merged when this becomes less. [default: as in the run]
        budget: Close more channels until the network costs no more, as parameters=10000 or
            multiply_adds=50%. The weights are not trained after it.
        multiple_of: Close more channels until so many times a whole number are kept of each group,
            or all there were.
    """
    from archlearn_cli.training.run_directory import COMPACT, read_run_settings, writing
    from archlearn_cli.training.run_setup import cut_to_budget_, read_pairs

    target = out or run / COMPACT
    asked = read_pairs("budget", budget)
    trained = read_run_settings(run).strengths.pay
    is_another = bool(asked) or multiple_of > 1 or pay not in (None, trained)
    if out is None and is_another and (run / SUMMARY).is_file():
        raise SettingsError(
            f"{target} is what the summary and the report of this run describe; write another "
            "network into a file of its own: --out small.safetensors"
        )
    revived = cli.training.load_gated_model(run)
    if asked or multiple_of > 1:
        cut_to_budget_(revived, asked, multiple_of)
    with writing(target):
        chosen = al.plan(revived.model, revived.example, pay=pay or trained)
        small = al.compact(revived.model, plan=chosen)
        al.save(small, target)
    n_rows = len(revived.example)  # costs are said of one example, as everywhere
    before, after = (cost.for_one_example(n_rows) for cost in (revived.original, chosen.after))
    shown = replace(chosen, before=before, after=after)
    sys.stdout.write(f"{shown}\n{small.certificate}\n{target}\n")


EVALUATE_EXAMPLES = """Examples:

    archlearn evaluate runs/a
    archlearn evaluate small.safetensors --data mnist
"""


def evaluate_command(
    target: Path,
    /,
    *,
    data: str | None = None,
    split: Literal["test", "validation", "train"] = "test",
    normalise: Literal["data", "imagenet"] | None = None,
    skip_broken: bool = False,
    speed: bool = True,
) -> None:
    """Measure a compact model on data, and how fast it is beside the network that a run began with.

    Times are medians of forward passes that both take in turns. The run's report shows them.

    Args:
        target: A run's folder, or a file that `archlearn compact` or archlearn.save wrote.
        data: The data set; a run knows its own.
        split: The part to measure on.
        normalise: Whose mean and deviation inputs are normalised by; a run knows its own.
        skip_broken: Leave broken images out, naming each, instead of stopping.
        speed: Measure a run's time and memory as well, on the CPU and, if there is one, the GPU.
    """
    from archlearn_cli.training.checkpoint import LATEST, PREVIOUS
    from archlearn_cli.training.initial_model import check_fit
    from archlearn_cli.training.run_directory import REPORT, check_writable, read_run_settings

    path = _find_compact(target)
    if target.name in (LATEST, PREVIOUS):
        raise SettingsError(
            f"{target} is the checkpoint of a run; to measure the run: archlearn evaluate "
            f"{target.parent}"
        )
    if data is None and not target.is_dir():
        raise SettingsError(f"say what to measure {target} on: --data mnist")
    settings = read_run_settings(target) if target.is_dir() else RunSettings()
    is_timed = speed and target.is_dir() and data is None
    if is_timed:
        check_writable(target / SPEED, "make it writable, or leave the times out: --no-speed")
    asked = replace(
        settings,
        data=data or settings.data,
        normalise=normalise or settings.normalise,
        skip_broken=skip_broken or settings.skip_broken,
    )
    dataset = cli.training.load_dataset(asked, no_progress)
    if len(getattr(dataset, split)) == 0:
        raise SettingsError(
            f"{target} set no validation part apart (--validation 0); measure it on another part, "
            "as --split test"
        )
    network = al.load(path)
    check_fit(network, dataset, str(path))
    objective = cli.training.objective_of(dataset)
    score = cli.training.evaluate(network, getattr(dataset, split), objective)
    sys.stdout.write(f"{_say_score(score)}\n")
    if is_timed:
        from archlearn_cli.training.finalize import measure_run

        (before, after), speeds, first = measure_run(target, network, asked, dataset, split)
        if first is not None:
            sys.stdout.write(f"before: {_say_score(first)}\n")
        pairs = {
            "multiply-adds": (before.multiply_adds, after.multiply_adds),
            "parameters": (before.parameters, after.parameters),
        }
        words = (f"{n} {a:,} -> {b:,} ({a / max(b, 1):.2f}×)" for n, (a, b) in pairs.items())
        sys.stdout.write(f"{', '.join(words)}\n")
        sys.stdout.write("".join(f"{row}\n" for row in speeds))
        if (target / REPORT).is_file():
            cli.reporting.write_report(target, target / REPORT)


def _say_score(score: "Score") -> str:
    measured = (
        f"{score.accuracy:.2%} right"
        if score.accuracy is not None
        else f"mean squared error {score.error:.4g}"
    )
    return f"{measured}, loss {score.loss:.4f}, on {score.n_examples:,} examples"


def _find_compact(target: Path) -> Path:
    """Return the file of a compact model: that of a run's folder, or the one that is named."""
    from archlearn_cli.training.run_directory import COMPACT, read_run_settings

    path = target / COMPACT if target.is_dir() else target
    if not target.exists():
        raise SettingsError(
            f"there is no {target}; give a run's folder, or a file that archlearn compact wrote"
        )
    if (target / "config.json").is_file():
        raise SettingsError(
            f"{target} is a folder of transformers, which its from_pretrained reads; give a run's "
            "folder, or a file that archlearn.save wrote"
        )
    if target.is_dir() and not path.is_file():
        read_run_settings(target)  # refuses what is no run
        raise SettingsError(
            f"the run {target} has no compact model yet; let it end (archlearn learn --resume "
            f"{target}), or compact it as it is: archlearn compact {target}"
        )
    return path


EXPORT_EXAMPLES = """Examples:

    archlearn export runs/a --to onnx
    archlearn export runs/a --to onnx --out lenet.onnx
    archlearn export small.safetensors --to torch-export --shape 1x28x28
    archlearn export runs/a --to onnx --dynamic-dims 0,2,3
    archlearn export small.safetensors --to pretrained --config bert-base
"""
_SUFFIXES = {"onnx": ".onnx", "torch-export": ".pt2"}


def export(
    target: Path,
    /,
    *,
    to: Literal["onnx", "torch-export", "pretrained"],
    out: Path | None = None,
    shape: str | None = None,
    dynamic_dims: str = "0",
    config: Path | None = None,
    own_file: bool = False,
) -> None:
    """Write a compact model for other programs, and check that it computes the same there.

    Args:
        target: A run's folder, or a file that `archlearn compact` or archlearn.save wrote.
        to: ONNX, an ExportedProgram of torch.export, or, of a model of transformers, a folder that
            from_pretrained reads where its sizes fit its config. The tokenizer is not copied.
        out: The file or folder to write. [default: beside the compact model, with the suffix of
            the format]
        shape: Shape of one example, as 3x32x32; a run knows its own.
        dynamic_dims: The dimensions of a batch that may have any size in ONNX and torch.export: 0,1
            for tokens of any length, 0,2,3 for images.
        config: For pretrained: a folder with the config.json of the model that was gated.
        own_file: For pretrained: keep the file in the folder where no config can say its sizes.
    """
    from archlearn.export.pretrained_folder import FILE
    from archlearn.export.programs import export_model
    from archlearn_cli.training.initial_model import run_once
    from archlearn_cli.training.run_directory import read_run_settings, writing

    if (target / FILE).is_file():
        target = target / FILE
    path = _find_compact(target)
    if to == "pretrained":
        _export_pretrained(path, out, config, own_file=own_file)
        return
    network = al.load(path).eval()
    if shape is None and not target.is_dir():
        raise SettingsError(f"say what shape an example of {target} has: --shape 1x28x28")
    chosen = out or path.with_suffix(_SUFFIXES[to])
    with writing(chosen):
        if shape is None:
            dataset = cli.training.load_dataset(read_run_settings(target), no_progress)
            example = cli.training.objective_of(dataset).inputs(dataset.train.inputs[:2])
        else:
            example = _make_example(network, parse_shape(shape))
            run_once(network, example, str(path))
        result = export_model(network, chosen, to, example, dynamic_dims=_parse_dims(dynamic_dims))
    sys.stdout.write(f"{result}\n")


def _parse_dims(text: str) -> tuple[int, ...]:
    """Return the dimensions that `0,2,3` names."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise SettingsError(
            f"--dynamic-dims is {text!r}; name dimensions of a batch, as 0,2,3"
        ) from None


def _export_pretrained(
    path: Path, out: Path | None, config: Path | None, *, own_file: bool
) -> None:
    """Write a folder of transformers, or one that holds our file, where nothing is yet."""
    from archlearn.export.pretrained_folder import FILE, save_pretrained
    from archlearn_cli.training.run_directory import writing

    if config is None:
        raise SettingsError(
            f"{path} holds no config of transformers; name a folder with the config.json of the "
            "model that was gated: --config bert-base"
        )
    folder = out or path.with_suffix("")
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise SettingsError(f"{folder} is there already; choose another folder with --out")
    with writing(folder / FILE if folder.is_dir() else folder):
        saved = save_pretrained(al.load(path), folder, config, own_file=own_file)
    sys.stdout.write(f"{saved}\n")


def _make_example(network: "nn.Module", shape: tuple[int, ...]) -> "Tensor":
    """Return two random examples (zeros hide weights): tokens where the network reads such."""
    import torch
    from torch import nn

    from archlearn_cli.training.objectives import in_format_of

    drawn = torch.Generator().manual_seed(0)
    tables = [m.num_embeddings for m in network.modules() if isinstance(m, nn.Embedding)]
    if tables:
        example = torch.randint(min(tables), (2, *shape), generator=drawn)
    else:
        example = torch.randn(2, *shape, generator=drawn)
    return in_format_of(network, example)


DATA_EXAMPLES = """Examples:

    archlearn data
    archlearn data mnist
    archlearn data folder:photos:64
    archlearn data folder:photos --skip-broken
"""


def data(name: str | None = None, /, *, skip_broken: bool = False) -> None:
    """List the data sets, or fetch one and describe it.

    Files are kept in $ARCHLEARN_CACHE, or ~/.cache/archlearn.

    Args:
        name: A data set; left out, they are listed.
        skip_broken: Leave broken images out, naming each, instead of stopping.
    """
    from archlearn_cli.data.dataset_registry import DATASETS

    if name is None:
        width = max(len(kind) for kind in DATASETS)
        for kind, text in DATASETS.items():
            sys.stdout.write(f"{kind:{width}}  {text}\n")
        return
    from archlearn_cli.commands.display import show_downloads

    with show_downloads() as progress:
        examples = cli.data.load_examples(name, progress, skip_broken=skip_broken)
    dataset = cli.data.build_dataset(examples, validation_share=RunSettings().validation)
    shape = " x ".join(str(size) for size in dataset.input_shape)
    sys.stdout.write(
        f"{dataset.name} from {dataset.source}: {dataset.task}, {dataset.n_outputs} outputs, "
        f"examples of {shape}\n"
        f"train {len(dataset.train):,}, validation {len(dataset.validation):,}, "
        f"test {len(dataset.test):,}\n"
    )
