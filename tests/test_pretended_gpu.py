"""On another device than the CPU networks are learnt, shrunk and compacted exactly, too."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

# Each of these once mixed labels, which are on the CPU, with tensors of the model's device.
NAMES = (
    "zoo/bilstm_of_layers_from_zeros", "zoo/class_token",
    "zoo/conv_lstm", "zoo/gru_from_a_learnt_state", "zoo/shuffle_by_hand", "zoo/shuffle_unit",
    "zoo/state_of_size", "zoo/state_of_zeros", "zoo/summed_into_zeros", "zoo/trap_picked",
    "zoo/trap_rolled",
)  # fmt: skip
SCRIPT = """
import json, sys
from pathlib import Path
import torch
from tests.pretended_gpu import register_
register_(Path(sys.argv[1]))
x = torch.ones(3)
try:
    x[torch.tensor([1], device="gpu")]
except RuntimeError as error:
    assert "same device" in str(error)
else:
    raise AssertionError("an index of the device selects from a tensor of the CPU")
from benchmarks.zoo.on_device import measure
print(json.dumps({name: measure(name, "gpu") for name in sys.argv[2:]}))
"""


@pytest.mark.slow
def test_networks_are_exact_on_a_second_device(tmp_path: Path) -> None:
    if not (shutil.which("c++") and shutil.which("ninja")):
        pytest.skip("there is no compiler for the second device")
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), *NAMES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])
    rows = {name: row for name, row in rows.items() if row["result"] != "not installed"}
    assert {name: row for name, row in rows.items() if row["result"] != "exact"} == {}
