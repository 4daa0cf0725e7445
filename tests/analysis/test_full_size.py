"""Networks as large as people have them: their sums are rounded by more than small ones'."""

import torch
from torch import Tensor, nn

import archlearn as al


class NewGelu(nn.Module):
    """GELU as transformers writes it for GPT-2: a gated model has torch's own."""

    def forward(self, x: Tensor) -> Tensor:
        inner = 0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))
        return 0.5 * x * (1.0 + torch.tanh(inner))


class Own(nn.Module):
    """Calls something unknown at its end, so that its trace is checked with its own weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.act = nn.Linear(64, 4096), NewGelu()
        self.second = nn.Linear(4096, 4000)
        nn.init.normal_(self.second.weight, std=0.2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.special.sinc(self.second(self.act(self.first(x))))


def test_a_trace_of_a_large_network_is_not_refused_for_its_rounding() -> None:
    torch.manual_seed(0)
    net, x = Own(), 3 * torch.randn(4, 64)
    model = al.add_gates(net, x)
    with torch.no_grad():
        al.width_gates(model)["first"][1000:] = 0.0
    small = al.compact(model)
    assert small.certificate.difference_float64 < 1e-10
    assert sum(weight.numel() for weight in small.parameters()) < 4_400_000
