"""DataParallel runs replicas, whose parameters are plain attributes; gates act in those, too."""

from typing import Any

import torch
from torch import nn

import archlearn as al


def replicate(module: nn.Module) -> nn.Module:
    """Return a replica as torch.nn.parallel.replicate makes it, which needs several devices."""
    made: Any = module._replicate_for_data_parallel()
    for name, child in module._modules.items():
        made._modules[name] = None if child is None else replicate(child)
    for name, parameter in module._parameters.items():
        if parameter is None:
            made._parameters[name] = None
        else:
            setattr(made, name, parameter * 1.0)
    return made


def test_a_replica_computes_the_same_and_reaches_the_gates() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2)).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    model = al.add_gates(net, x).eval()
    (gate,) = al.width_gates(model).values()
    with torch.no_grad():
        gate[:2] = 0.2
    replica = replicate(model)
    torch.testing.assert_close(replica(x), model(x))
    replica(x).sum().backward()
    assert gate.grad is not None
    assert gate.grad[3:].abs().min() > 0
