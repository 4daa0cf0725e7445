"""Torch is changed while a model is traced; what is imported meanwhile must not see that."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import torch
from torch import nn
from archlearn.tracing.symbolic_trace import ExampleInputs, trace

class Imports(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x):
        import torch._dynamo.utils
        try:
            import torch_that_is_not_there
        except ImportError:
            pass
        size = torch.arange(x.shape[1]) + torch.finfo(x.dtype).eps
        return torch.relu(self.layer(x)) + size

assert "torch._dynamo" not in sys.modules
graph = trace(Imports(), ExampleInputs.of(torch.randn(2, 3))).evaluation
assert {"arange", "finfo"} <= {node.name for node in graph.nodes}
assert torch.finfo in torch._dynamo.utils.common_constant_types
assert type(torch.finfo(torch.float32)) is torch.finfo
compiled = torch.compile(lambda x: x * torch.finfo(x.dtype).eps, backend="eager", fullgraph=True)
compiled(torch.ones(2))
"""


@pytest.mark.slow
def test_modules_imported_by_forward_see_torch_as_it_is() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False
    )
    assert ran.returncode == 0, ran.stderr
