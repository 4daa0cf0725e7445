"""Complex numbers have a part in some models: as weights, and as outputs."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import archlearn as al


class Spectrum(nn.Module):
    """Returns complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft(self.last(F.relu(self.first(x))))


class FourierLayer(nn.Module):
    """Its first parameter is complex (a Fourier neural operator)."""

    def __init__(self) -> None:
        super().__init__()
        self.spectral = nn.Parameter(torch.randn(4, 4, 5, dtype=torch.cfloat) / 4)
        self.lift, self.skip = nn.Linear(2, 4), nn.Conv1d(4, 4, 1)
        self.hidden, self.last = nn.Linear(4, 32), nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.lift(x).permute(0, 2, 1)
        modes = torch.einsum("bix,iox->box", torch.fft.rfft(x)[:, :, :5], self.spectral)
        x = F.gelu(torch.fft.irfft(modes, n=x.shape[-1]) + self.skip(x)).permute(0, 2, 1)
        return self.last(F.gelu(self.hidden(x)))


def compacted(net: nn.Module, x: Tensor) -> tuple[nn.Module, nn.Module]:
    model = al.add_gates(net, x).eval()
    with torch.no_grad():
        for gate in al.width_gates(model).values():
            gate[::2] = 0.1
    return model, al.compact(model)


def test_complex_outputs_are_compared_as_numbers() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 8)
    model, small = compacted(Spectrum(), x)
    torch.testing.assert_close(small(x), model(x))
    certificate: Any = small.certificate
    assert 0 < certificate.difference < 1e-5
    assert al.read_architecture(model).widths == (8, 8)


def test_complex_outputs_that_differ_are_noticed() -> None:
    torch.manual_seed(0)
    one, other = Spectrum(), Spectrum()
    with pytest.raises(al.CertificateError, match=r"differ by \d"):
        al.certify(one, other, torch.randn(3, 8))


def test_gates_and_inputs_are_real_though_the_first_parameter_is_complex() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 16, 2)
    model, small = compacted(FourierLayer(), x)
    assert all(gate.dtype is torch.float32 for gate in al.width_gates(model).values())
    torch.testing.assert_close(small(x), model(x))
    assert al.count_costs(small) == al.plan(model).after
    al.penalty(model, al.Strengths.from_width_cost(1e-3)).backward()
