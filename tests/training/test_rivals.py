"""Networks that our gates are compared with cost what was asked for."""

from pathlib import Path

import pytest
import torch

import archlearn as al
import archlearn_cli as cli
from archlearn_cli.data import Dataset, Examples, Split, build_dataset
from archlearn_cli.training.settings import RunSettings
from benchmarks import rivals


def few_images() -> Dataset:
    images = torch.randint(256, (20, *rivals.EXAMPLE[1:]), dtype=torch.uint8)
    split = Split(images, torch.arange(20) % 10)
    examples = Examples(name="x", source="x", train=split, test=split, validation=split)
    return build_dataset(examples, validation_share=0.0)


@pytest.mark.parametrize("kind", ["l0", "sparse_learning"])
def test_a_rival_that_learns_sparsely_ends_at_half_of_the_multiply_adds(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    data = few_images()
    monkeypatch.setattr(rivals, "load_dataset", lambda *_: data)
    settings = RunSettings(model="resnet20", epochs=1, batch_size=10)
    network = rivals.KINDS[kind](settings, Path())
    whole = cli.models.build_network("resnet20", rivals.EXAMPLE[1:], 10)
    costs = [al.count_costs(n, torch.zeros(rivals.EXAMPLE)).multiply_adds for n in (network, whole)]
    assert 0.49 * costs[1] <= costs[0] <= 0.5 * costs[1]


def test_values_of_layers_that_write_a_channel_are_summed_by_gate() -> None:
    network = cli.models.build_network("resnet20", rivals.EXAMPLE[1:], 10)
    model = al.add_gates(network, torch.randn(rivals.EXAMPLE), learn={"*": al.Learn.WIDTH})
    norms = {n: m for n, m in network.named_modules() if isinstance(m, torch.nn.BatchNorm2d)}
    sums = rivals._sum_by_gate(model, {n: torch.ones(m.num_features) for n, m in norms.items()})
    # The first stream passes the stem and nine blocks; the shortcuts add to it in front and behind.
    assert {name: set(total.tolist()) for name, total in sums.items()} == {
        name: {{"conv1": 10.0, "layer2.0.conv2": 6.0, "layer3.0.conv2": 3.0}.get(name, 1.0)}
        for name in sums
    }
