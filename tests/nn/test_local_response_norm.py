"""Local response normalisation by a product computes what torch computes."""

import pytest
import torch
from torch import nn

import archlearn as al
from archlearn.nn.norms import LocalResponse, respond


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 20])
@pytest.mark.parametrize("shape", [(2, 9, 5), (2, 9, 4, 3), (2, 9, 2, 3, 2)])
def test_product_computes_what_torch_computes(size: int, shape: tuple[int, ...]) -> None:
    x = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    first, second = x.clone().requires_grad_(), x.clone().requires_grad_()
    settings = {"alpha": 0.7, "beta": 0.6, "k": 1.5}
    ours = LocalResponse(size, **settings)(first)
    theirs = nn.LocalResponseNorm(size, **settings)(second)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    upstream = torch.randn_like(x)
    ours.backward(upstream)
    theirs.backward(upstream)
    torch.testing.assert_close(first.grad, second.grad, rtol=0, atol=1e-12)


def test_channels_that_are_left_stand_where_they_stood() -> None:
    norm = nn.LocalResponseNorm(5, alpha=0.7, beta=0.6, k=1.5)
    whole = torch.zeros(2, 12, 3, 3, dtype=torch.float64)
    kept = torch.tensor([0, 3, 4, 9])
    x = torch.randn(2, 4, 3, 3, dtype=torch.float64)
    whole[:, kept] = x
    torch.testing.assert_close(respond(x, kept, norm), norm(whole)[:, kept], rtol=0, atol=1e-12)


def test_it_is_one_of_torchs_norms() -> None:
    norm = LocalResponse(5, alpha=1e-4)
    assert isinstance(norm, nn.LocalResponseNorm)
    assert (norm.size, norm.alpha, norm.beta, norm.k) == (5, 1e-4, 0.75, 1.0)


def test_how_a_norm_is_computed_does_not_count_as_multiply_adds() -> None:
    def build(norm: type[nn.Module]) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), norm(5), nn.Conv2d(8, 2, 3))

    x = torch.zeros(2, 3, 9, 9)
    ours, theirs = build(LocalResponse), build(nn.LocalResponseNorm)
    assert al.count_costs(ours, x) == al.count_costs(theirs, x)
    gated = al.add_gates(ours, x)
    with torch.no_grad():
        next(iter(al.width_gates(gated).values()))[:5] = 0.1
    assert al.count_costs(al.compact(gated)) == al.plan(gated).after


def test_half_precision_does_not_round_the_norm_away() -> None:
    x = torch.full((1, 5, 2, 2), 3.0)
    norm = LocalResponse(5, alpha=5e-4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = norm(x.bfloat16())
    # Nine times three to five neighbours: 1 + 0.0027 to 1 + 0.0045, to the power -0.75.
    assert ours.dtype == torch.bfloat16
    exact = norm(x)
    torch.testing.assert_close(ours.float(), exact, rtol=2**-8, atol=0)
    strong = LocalResponse(5, alpha=0.02)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(strong(x.bfloat16()).float(), strong(x), rtol=2**-8, atol=0)
