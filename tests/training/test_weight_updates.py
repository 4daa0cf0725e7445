"""Large tensors in pieces are updated as they are whole."""

import pytest
import torch
from torch import Tensor, nn

from archlearn.training.train_step import cut_evenly, update_

SHAPES = [(300, 200), (7,), (40, 3, 5, 5), (500, 100)]


def make_optimiser(**options: float) -> torch.optim.SGD:
    generator = torch.Generator().manual_seed(0)
    weights = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]
    rate = torch.tensor(0.1)
    return torch.optim.SGD(weights, lr=rate, weight_decay=1e-2, fused=True, **options)


def set_gradients(optimiser: torch.optim.SGD, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    weights: list[Tensor] = optimiser.param_groups[0]["params"]
    for weight in weights:
        weight.grad = torch.randn(weight.shape, generator=generator)
    return weights


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_pieces_are_updated_as_the_whole(momentum: float) -> None:
    whole, cut = make_optimiser(momentum=momentum), make_optimiser(momentum=momentum)
    for seed in range(4):
        for optimiser in (whole, cut):
            set_gradients(optimiser, seed)
            vars(optimiser)["grad_scale"] = torch.tensor(1.0 + seed)
        whole.step()
        update_(cut)
    first, second = set_gradients(whole, 0), set_gradients(cut, 0)
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one, other)


def test_only_large_tensors_are_cut_and_nothing_is_copied() -> None:
    tensors = [torch.zeros(shape) for shape in SHAPES]
    others = [torch.ones(shape) for shape in SHAPES]
    pieces, matching = cut_evenly(tensors, others)
    assert [p.shape for p in pieces] == [p.shape for p in matching]
    assert sum(p.numel() for p in pieces) == sum(t.numel() for t in tensors)
    assert max(p.numel() for p in pieces) == 1 << 14
    assert any(p is tensors[1] for p in pieces)
    for piece in pieces:
        piece.add_(1)
    assert all(bool((tensor == 1).all()) for tensor in tensors)


def test_a_tensor_that_does_not_lie_in_one_row_stays_whole() -> None:
    tensor = torch.zeros(200, 300).T
    (pieces,) = cut_evenly([tensor])
    assert len(pieces) == 1
    assert pieces[0] is tensor
