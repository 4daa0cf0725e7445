"""Own networks and data that cannot be learnt are refused with a sentence, never a traceback."""

import sys
from pathlib import Path

import pytest

from tests.cli.commands import exit_code

CODE = """
import torch
from torch import nn

def net():
    layers = nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)
    return nn.Sequential(*layers)

def double():
    return net().double()

def frozen():
    return net().requires_grad_(False)

def without_numbers():
    broken = net()
    nn.init.constant_(broken[1].weight, float("nan"))
    return broken

class Misspelt(nn.Linear):
    def forward(self, x):
        return super().forward(x.flatten(1)) * self.scales

def misspelt():
    return Misspelt(64, 10)

def examples(n=60, dtype=torch.int64):
    x, y = torch.rand(n, 5, generator=torch.Generator().manual_seed(0)), torch.arange(n) % 2
    return (x, y.to(dtype)), (x, y.to(dtype))

def booleans():
    return examples(dtype=torch.bool)

def short():
    return examples(dtype=torch.int32)

def followed():
    (x, y), test = examples()
    return (x.requires_grad_(), y), test

def one():
    return examples(1)[0], examples()[1]

def stray():
    train, test = examples()
    train[1][3] = 10**9
    return train, test

def arrays():
    return tuple(tuple(part.numpy() for part in pair) for pair in examples())

def sparse():
    (x, y), test = examples()
    return (x.to_sparse(), y), test

def imaginary():
    (x, y), test = examples()
    return (x.cfloat(), y), (x.cfloat(), y)
"""


@pytest.fixture(autouse=True)
def wrong_inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the module where it is found."""
    (tmp_path / "wrong_inputs.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wrong_inputs", raising=False)


def code_of(words: str, out: Path) -> object:
    return exit_code(
        [*words.split(), "--epochs", "1", "--threads", "1", "--no-report", "--out", str(out)]
    )


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("double", "has weights in torch.float64, and runs are started in torch.float32"),
        ("frozen --learn nothing", "no weight of the network is to be learnt either"),
        ("net --leave 1", "(learn= is what --learn and --leave say)"),
        ("without_numbers", "gives what is no finite number for the first two examples"),
        ("misspelt", "(1, 8, 8): 'Misspelt' object has no attribute 'scales' ("),
        ("misspelt", "wrong_inputs.py:22)"),
    ],
)
def test_networks_that_cannot_be_trained_are_refused(
    name: str, answer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(f"learn --model wrong_inputs:{name} --data digits", tmp_path / "a") == 1
    assert answer in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("one", "has 1 train examples, and none is left when 1 of them are set apart"),
        ("stray", "to 1000000000; classes are counted from 0 without gaps"),
        ("arrays", "returned ((ndarray, ndarray), (ndarray, ndarray)); return two pairs of tens"),
        (
            "imaginary",
            "wrong_inputs:imaginary' are torch.strided, torch.complex64; give dense",
        ),
        (
            "sparse",
            "wrong_inputs:sparse' are torch.sparse_coo, torch.float32; give dense",
        ),
    ],
)
def test_data_that_cannot_be_learnt_are_refused(
    name: str, answer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(f"learn --model mlp:5 --data wrong_inputs:{name}", tmp_path / "a") == 1
    assert answer in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("name", ["booleans", "short", "followed"])
def test_tensors_of_kinds_that_users_have_are_learnt(name: str, tmp_path: Path) -> None:
    assert code_of(f"learn --model mlp:5 --data wrong_inputs:{name}", tmp_path / "a") == 0


@pytest.mark.parametrize("learnt", ["all", "nothing"])
def test_runs_in_double_precision_are_checked_and_saved(learnt: str, tmp_path: Path) -> None:
    words = f"learn --model mlp:5 --data digits --precision 64-true --learn {learnt}"
    assert code_of(words, tmp_path / "a") == 0


def test_a_network_that_no_memory_holds_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is allocated: no machine has the 26 terabytes that are asked for."""
    assert code_of("learn --model mlp:99999999999 --data digits", tmp_path / "a") == 1
    assert "the memory is too small for this run" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("name", ["net", "double"])
def test_inspect_says_which_option_has_the_shape(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["inspect", f"wrong_inputs:{name}"]) == 1
    wrong = "does not take examples of shape (1, 28, 28): mat1 and mat2"
    assert wrong in (said := capsys.readouterr().err)
    assert "choose another with --shape, or take it from --data" in said
    assert exit_code(["inspect", f"wrong_inputs:{name}", "--shape", "64"]) == 0
    assert "learnt" in capsys.readouterr().out


def test_gates_of_frozen_weights_are_learnt(tmp_path: Path) -> None:
    assert code_of("learn --model wrong_inputs:frozen --data digits", tmp_path / "a") == 0


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (
            "--budget parameters=50% --budget parameters=9",
            "budget names 'parameters' more than once (50%, 9); give it once",
        ),
        ("--validation 0.9999", "give more examples, or a smaller --validation"),
        ("--threads 100000", "threads is 100000; give --threads a whole number from 1 to 1,024"),
    ],
)
def test_settings_that_no_run_can_have_are_refused(
    words: str, answer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"learn --model mlp:5 --data digits --epochs 1 --no-report {words}"
    assert exit_code([*command.split(), "--out", str(tmp_path / "a")]) == 1
    assert answer in capsys.readouterr().err


def test_a_folder_that_no_checkpoint_could_be_read_from_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name has the byte ff in it."""
    assert code_of("learn --model mlp:5 --data digits", tmp_path / "a\udcff") == 1
    assert r"a\udcff' is not UTF-8, and no checkpoint" in capsys.readouterr().err
    assert list(tmp_path.glob("a*")) == []


def test_compact_refuses_a_multiple_of_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(["compact", str(tmp_path), "--multiple-of", "0"]) == 1
    assert 'Invalid value "0" for --multiple-of. Must be >= 1.' in capsys.readouterr().err


def test_inspect_of_a_file_says_what_it_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "compact.safetensors").touch()
    assert exit_code(["inspect", str(tmp_path / "compact.safetensors")]) == 1
    assert "holds no run; inspect takes a run's folder" in capsys.readouterr().err
