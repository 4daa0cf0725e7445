"""Help needs no torch and has examples; a misspelt word is answered with the right one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import assert_refused, run, run_here

COMMANDS = (
    *("learn", "inspect", "evaluate", "export", "compact", "report"),
    *("data", "demo", "compare", "paper"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(command: str, tmp_path: Path) -> None:
    code, output = run([command, "--help"], tmp_path)
    assert code == 0
    assert f"archlearn {command}" in output
    assert "Examples:" in output


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fills_the_lines_of_a_terminal(command: str, tmp_path: Path) -> None:
    text = run([command, "--help"], tmp_path)[1]
    assert "--empty-" not in text
    assert not re.search(r"default: (False|None|inf|\(\))\]", text)
    about, examples = text.split("\n╭")[0], text.split("Examples:")[1]
    for paragraph in about.split("\n\n"):
        *lines, _ = paragraph.strip().splitlines() or [""]
        assert all(len(line.rstrip()) > 150 for line in lines), "a line ends before the terminal"
    assert all(len(line.rstrip()) <= 80 for line in examples.splitlines())


def test_commands_and_options_that_most_people_need_come_first(tmp_path: Path) -> None:
    commands = re.findall(r"^│ (\w+) ", run(["--help"], tmp_path)[1], re.MULTILINE)
    assert commands == ["learn", *(name for name in COMMANDS if name != "learn")]
    text = run(["learn", "--help"], tmp_path)[1]
    panels = re.findall(r"^╭─ (.*?) ─", text, re.MULTILINE)
    assert panels == ["Parameters", "Run", "Weights", "Gates", "Paper's penalty", "Hardware",
                      "Record"]  # fmt: skip
    first = [
        re.findall(r"^│ --([a-z-]+)", panel, re.MULTILINE)[0] for panel in text.split("╭─")[1:]
    ]
    assert first == ["out", "model", "optimizer", "budget", "width-cost", "accelerator",
                     "checkpoint-seconds"]  # fmt: skip


@pytest.mark.parametrize("arguments", [["--help"], *([command, "--help"] for command in COMMANDS)])
def test_help_imports_neither_torch_nor_the_like(arguments: list[str], tmp_path: Path) -> None:
    """Without them help is there at once; benchmarks/help_time.py measures how soon."""
    script = (
        "import sys\n"
        "from archlearn_cli import main\n"
        "try:\n"
        f"    main({arguments!r})\n"
        "except SystemExit as end:\n"
        "    print(end.code, file=sys.stderr)\n"
        "slow = ('torch', 'numpy', 'matplotlib', 'sklearn', 'lightning_fabric', 'PIL')\n"
        "print([name for name in slow if name in sys.modules], file=sys.stderr)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ended.stderr.split("\n") == ["0", "[]", ""]
    assert "archlearn" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ("lern", 'Did you mean "learn"?'),
        (
            "learn --widht-cost 1 --out a",
            "no option --widht-cost; did you mean --width-cost? see archlearn learn --help",
        ),
        ("learn --lr 0.1 --out a", "did you mean --learning-rate?"),
        ("learn --device=cuda --out a", "no option --device; did you mean --accelerator?"),
        ("learn --prune 3 --out a", "there is no option --prune; see archlearn learn --help"),
        ("learn --data mnits --out a", "did you mean 'mnist'?"),
        ("learn --model lennet --data digits:28 --out a", "did you mean 'lenet'?"),
        ("learn --model resnet8 --data digits --out a", "did you mean 'resnet20' or 'resnet56'?"),
        ("learn --data digits", "--out runs/a"),
        ("learn --resume nothing", "holds no run (there is no config.toml in it); give the folder"),
        ("learn runs/a", "learn has no use for 'runs/a'; see archlearn learn --help"),
        (
            "learn --budget parameters=50% multiply_adds=50% --out a",
            "no use for 'multiply_adds=50%'; for several budgets give --budget again before each",
        ),
        ("export runs/a", "export needs --to; see archlearn export --help"),
        ("learn --out", "--out needs a value; see archlearn learn --help"),
        (
            "learn --learning-rate fast --out a",
            '--learning-rate: unable to convert "fast" into float',
        ),
        ("inspect runs/nothing", "there is neither a run's folder 'runs/nothing' nor a model"),
        ("data tiny-shakespeare:nothing", "nothing: there is no such file; give a text in UTF-8"),
        (
            "learn --model mlp --data digits --teacher nothing.pt --out a",
            "cannot read the --teacher nothing.pt: there is no such file",
        ),
        ("learn --model lenet --data digits --out a", "digits:28 are enlarged"),
        ("inspect lenet --shape 3x4", "take the model mlp, or examples that fit"),
        (
            "learn --data digits --model mlp --epochs 2.5 --out a",
            "--epochs is '2.5'; give a whole number",
        ),
        ("learn --data digits --model mlp --out /proc/a", "choose another --out"),
        ("learn --data digits --model mlp --out /etc/passwd", "choose another --out"),
        ("learn --data digits --model mlp --out /etc/passwd/a", "choose another --out"),
        ("report", "give one run's folder"),
        ("evaluate small.safetensors", "--data mnist"),
        ("export small.safetensors --to onnx", "not a safetensors file"),
    ],
)
def test_what_is_wrong_is_answered_with_what_to_do(
    arguments: str, answer: str, tmp_path: Path
) -> None:
    (tmp_path / "small.safetensors").touch()
    assert_refused(arguments, answer, tmp_path)


def test_misspelt_key_in_a_file_is_answered_with_the_right_one(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("[gates]\nfreze_for = 0.1\n")
    code, output = run(["learn", "--config", "run.toml", "--out", "a"], tmp_path)
    assert code == 1
    assert "run.toml: there is no setting 'gates.freze_for'; did you mean 'freeze_for'?" in output


def test_the_earlier_spelling_of_optimizer_is_read_in_files_and_options(tmp_path: Path) -> None:
    text = 'data = "digits"\nmodel = "mlp:8"\nlimit = 200\nepochs = 1\n'
    (tmp_path / "run.toml").write_text(text + "[optimiser]\nlearning_rate = 0.03\n")
    words = "learn --config run.toml --optimiser=adam --gate-optimiser budget --no-report --out a"
    code, _ = run_here(words.split(), tmp_path)
    assert code == 0
    written = (tmp_path / "a" / "config.toml").read_text()
    for line in ("[optimizer]", 'optimizer = "adam"', "= 0.03", 'gate_optimizer = "budget"'):
        assert line in written
    former = re.sub("optimizer", "optimiser", written)
    (tmp_path / "a" / "config.toml").write_text(former)
    code, said = run_here(["learn", "--resume", "a", "--optimiser", "adam"], tmp_path)
    assert code == 0
    code, said = run_here(["learn", "--resume", "a", "--optimiser", "sgd"], tmp_path)
    assert code == 1
    assert "optimizer cannot be changed" in said


def test_options_win_over_a_file_even_where_they_say_the_default(tmp_path: Path) -> None:
    text = 'data = "digits"\nmodel = "mlp:8"\nlimit = 200\nepochs = 1\nseed = 3\n'
    (tmp_path / "run.toml").write_text(text + "[optimizer]\nlearning_rate = 0.03\n")
    words = ["learn", "--config", "run.toml", "--out", "a", "--seed", "0", "--no-report"]
    code, _ = run(words, tmp_path)
    assert code == 0
    written = (tmp_path / "a" / "config.toml").read_text()
    assert 'data = "digits"' in written  # which is the name of a command, too
    assert "seed = 0" in written
    assert "epochs = 1" in written
    assert "learning_rate = 0.03" in written
