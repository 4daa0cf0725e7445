"""`archlearn inspect`."""

import sys
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

EXAMPLES = """Examples:
  archlearn inspect lenet
  archlearn inspect mypackage.net:build --shape 3x224x224 --outputs 1000
  archlearn inspect resnet20 --data cifar-10
  archlearn inspect gpt --shape 128 --outputs 65
"""


def inspect(
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
        model: A built-in network, or package.module:function.
        data: Take shape and outputs from this data set.
        shape: Shape of one example, as 3x32x32.
        outputs: Number of classes, or of numbers to predict.
        skip_broken: Leave broken images out, naming each, instead of stopping.
    """
    import torch

    from archlearn.errors import InputError
    from archlearn.inspection import inspect as inspect_model
    from archlearn.models.registry import build_network, reads_tokens
    from archlearn.training.initial_model import run_once
    from archlearn.training.metrics import in_format_of

    sizes, n_outputs = _parse_shape(shape), outputs
    example = torch.zeros(2, *sizes, dtype=torch.long if reads_tokens(model) else None)
    if data is not None:
        from archlearn.data.dataset import build_dataset
        from archlearn.data.registry import load_examples
        from archlearn.training.objectives import objective_of

        examples = load_examples(data, skip_broken=skip_broken)
        dataset = build_dataset(examples, validation_share=0.1)
        sizes, n_outputs = dataset.input_shape, dataset.n_outputs
        example = objective_of(dataset).inputs(dataset.train.inputs[:2])
    network = build_network(model, sizes, n_outputs)
    example = in_format_of(network, example)
    try:
        run_once(network, example, model)
    except InputError as error:
        raise InputError(f"{error}; choose another with --shape, or take it from --data") from error
    sys.stdout.write(f"{inspect_model(network, example)}\n")


def _parse_shape(text: str) -> tuple[int, ...]:
    from archlearn.errors import SettingsError

    parts = text.lower().split("x")
    if not all(part.isdigit() and int(part) > 0 for part in parts):
        raise SettingsError(f"--shape {text!r} is no shape; write 1x28x28 or 10")
    return tuple(int(part) for part in parts)
