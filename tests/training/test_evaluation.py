"""A score is that of all examples together, however many are scored at once."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import archlearn_cli as cli

N_TEST = 2_300
"""More than two batches, of which the last is smaller."""


def make_dataset() -> cli.data.Dataset:
    generator = torch.Generator().manual_seed(0)
    parts = [
        cli.data.Split(
            torch.randint(0, 256, (n, 2, 3, 3), generator=generator, dtype=torch.uint8),
            torch.randint(0, 4, (n,), generator=generator),
        )
        for n in (500, N_TEST)
    ]
    examples = cli.data.Examples(name="made", source="here", train=parts[0], test=parts[1])
    return cli.data.build_dataset(examples, validation_share=0.1)


def test_loss_and_accuracy_are_means_over_examples_in_evaluation_mode() -> None:
    dataset = make_dataset()
    # the last examples alone are easy, so that a mean of means would differ
    dataset.test.targets[2_000:] = 1
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(18, 4))
    net[2].bias.data[1] += 1.0
    objective = cli.training.objective_of(dataset)
    score = cli.training.evaluate(net, dataset.test, objective)
    assert net[1].training
    net.eval()
    outputs = net(objective.inputs(dataset.test.inputs))
    expected = F.cross_entropy(outputs, dataset.test.targets).item()
    right = (outputs.argmax(1) == dataset.test.targets).float().mean().item()
    assert score.loss == pytest.approx(expected, rel=1e-5)
    assert score.accuracy == pytest.approx(right, rel=1e-6)
    assert score.n_examples == N_TEST


def test_inputs_that_are_learnt_from_have_mean_zero_and_deviation_one() -> None:
    dataset = make_dataset()
    inputs = cli.training.objective_of(dataset).inputs(dataset.train.inputs).double()
    torch.testing.assert_close(inputs.mean((0, 2, 3)), torch.zeros(2).double(), rtol=0, atol=1e-6)
    torch.testing.assert_close(
        inputs.std((0, 2, 3), correction=0), torch.ones(2).double(), rtol=0, atol=1e-6
    )


def test_parts_set_apart_are_those_of_every_earlier_version() -> None:
    """Or results of two versions would be measured on different examples."""
    numbers = cli.data.Split(torch.arange(20).reshape(20, 1), torch.arange(20))
    validation = cli.data.carve_validation(numbers, 0.2)[1].targets
    test = cli.data.carve_test(numbers, 0.2)[1].targets
    assert validation.tolist() == [8, 16, 15, 6]
    assert test.tolist() == [4, 9, 7, 2]
