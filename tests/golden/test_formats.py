"""What an earlier version wrote is read by this one."""

import pytest
import torch
from torch import nn

import archlearn as al
from archlearn.serialization import file_format
from tests.golden.formats import FOLDER, KINDS, make_gated


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_an_earlier_version_saved_computes_the_same(kind: str) -> None:
    kept = torch.load(FOLDER / f"{kind}.pt", weights_only=True)
    model = al.load(FOLDER / f"{kind}.safetensors")
    torch.testing.assert_close(model(kept["input"]), kept["output"], rtol=0, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_dict_of_an_earlier_version_has_the_same_keys_and_meaning(kind: str) -> None:
    kept = torch.load(FOLDER / f"{kind}.pt", weights_only=True)
    model, _ = make_gated(kind)
    added = "archlearn_gates.slope"  # since layers become linear by and by
    assert [key for key in model.state_dict() if key != added] == list(kept["state"])
    model.load_state_dict(kept["state"])
    output = al.compact(model.eval())(kept["input"])
    torch.testing.assert_close(output, kept["output"], rtol=0, atol=1e-10)


def test_a_file_of_an_older_format_is_migrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if layers were described under another name in version 2."""

    def rename(metadata: dict[str, str]) -> dict[str, str]:
        return metadata | {"description": metadata["description"].replace("ReLU", "SiLU")}

    monkeypatch.setattr(file_format, "MIGRATIONS", (rename,))
    monkeypatch.setattr(file_format, "VERSION", 2)
    kinds = {type(module) for module in al.load(FOLDER / "dense.safetensors").modules()}
    assert nn.SiLU in kinds
    assert nn.ReLU not in kinds
