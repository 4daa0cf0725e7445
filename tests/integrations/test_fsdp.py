"""The blocks of a gated model are sharded by FSDP2, and its gates are learnt alike everywhere."""

from pathlib import Path

import pytest
import torch
from torch import distributed

import archlearn as al
from tests.integrations.processes import check_same, run_two

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (distributed.is_available() and distributed.is_gloo_available()),
        reason="this torch has no gloo",
    ),
]


def test_sharded_blocks_learn_to_a_budget_and_are_compacted(tmp_path: Path) -> None:
    first, second = run_two("tests.integrations.fsdp_worker", tmp_path)
    check_same(first, second)
    small = al.load(tmp_path / "small.safetensors").eval()
    x, y = torch.load(tmp_path / "output.pt", weights_only=True)
    torch.testing.assert_close(small(x), y)
    whole = 8 * 16 + 4 * 16 * 32 + 16 * 3
    assert al.count_costs(small, x[:1]).multiply_adds <= 0.5 * whole
