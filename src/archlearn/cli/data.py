"""`archlearn data`."""

import sys

EXAMPLES = """Examples:
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
    from archlearn.data.dataset_registry import DATASETS

    if name is None:
        width = max(len(kind) for kind in DATASETS)
        for kind, text in DATASETS.items():
            sys.stdout.write(f"{kind:{width}}  {text}\n")
        return
    from archlearn.cli.display import show_downloads
    from archlearn.data.dataset import build_dataset
    from archlearn.data.dataset_registry import load_examples
    from archlearn.training.settings import RunSettings

    with show_downloads() as progress:
        examples = load_examples(name, progress, skip_broken=skip_broken)
    dataset = build_dataset(examples, validation_share=RunSettings().validation)
    shape = " x ".join(str(size) for size in dataset.input_shape)
    sys.stdout.write(
        f"{dataset.name} from {dataset.source}: {dataset.task}, {dataset.n_outputs} outputs, "
        f"examples of {shape}\n"
        f"train {len(dataset.train):,}, validation {len(dataset.validation):,}, "
        f"test {len(dataset.test):,}\n"
    )
