"""A model that torch.fx has traced already is a model like any other."""

import copy
import pickle
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import fx, nn

import archlearn as al


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 3)).double()


class Around(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = fx.symbolic_trace(network()), nn.Linear(3, 2).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.inner(x)))


@pytest.mark.parametrize("make", [lambda: fx.symbolic_trace(network()), Around])
def test_a_graph_module_is_learnt_and_compacted(make: Any) -> None:
    x = torch.randn(5, 4, dtype=torch.float64)
    net = make().eval()
    gated = al.add_gates(net, x)
    torch.testing.assert_close(gated(x), net(x))
    with torch.no_grad():
        next(iter(al.width_gates(gated).values()))[:5] = 0.2
    small = al.compact(gated)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in net.parameters())
    for other in (small, copy.deepcopy(small), pickle.loads(pickle.dumps(small))):
        torch.testing.assert_close(other(x), gated(x), rtol=1e-10, atol=1e-10)


def test_a_feature_extractor_of_torchvision_is_learnt_in_both_modes() -> None:
    if find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    from benchmarks.torchvision_import import import_models

    models = import_models()
    from torchvision.models.feature_extraction import create_feature_extractor

    net = create_feature_extractor(models.squeezenet1_1(), ["features.4", "classifier.2"]).double()
    x = torch.randn(2, 3, 48, 48, dtype=torch.float64)
    gated = al.add_gates(net, x).eval()
    with torch.no_grad():
        for gates in al.width_gates(gated).values():
            gates[: len(gates) // 2] = 0.2
    small = al.compact(gated)
    meant, found = gated(x), small(x)
    assert meant.keys() == found.keys() == net.eval()(x).keys()
    for key in meant:
        torch.testing.assert_close(found[key], meant[key], rtol=1e-10, atol=1e-10)
    torch.manual_seed(0)
    first = small.train()(x)["classifier.2"]
    assert not torch.equal(first, small(x)["classifier.2"])  # dropout acts
