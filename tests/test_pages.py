"""Every block of code on the pages runs, says what the page says, and names what there is."""

import contextlib
import io
import linecache
import re
import shlex
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

import archlearn as al
from archlearn_cli.commands.app import app
from archlearn_cli.training import RunSettings
from archlearn_cli.training.defaults import (
    COST_OF_ALL_NEURONS,
    ENOUGH_STEPS,
    MOST_EPOCHS,
    MOST_TRAVEL_A_STEP,
    TRAVEL,
    derive_sizes,
)
from archlearn_cli.training.settings import from_table
from benchmarks.torchvision_import import import_models
from benchmarks.tutorials import NEEDED
from tests.reporting.run_folders import LENET, write_run

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
WITH_CODE = [page for page in PAGES if "```python" in page.read_text() and page.name not in NEEDED]
# On these, networks are trained.
LONG = {"how-gates-learn", "own-loop", "shrinking", "training-loops", "tutorial-cnn",
        "tutorial-own-block", "your-own-model"}  # fmt: skip


def blocks(page: Path, *kinds: str) -> list[tuple[str, str]]:
    """Return kind and content of each fenced block of a page, in order."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    return [(kind, text) for kind, text in found if kind in kinds]


def run_block(text: str, names: dict[str, Any]) -> str:
    """Return what a block prints, or the error that it raises."""
    linecache.cache["net.py"] = (len(text), None, text.splitlines(keepends=True), "net.py")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            exec(compile(text, "net.py", "exec"), names)
        except al.ArchlearnError as error:
            return f"{type(error).__name__}: {error}"
    return printed.getvalue()


@pytest.mark.filterwarnings("ignore:.*torch.jit.* is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*quantiz.*deprecated")
@pytest.mark.filterwarnings("ignore:.*(LeafSpec|num_workers|srun|isinstance).*")  # Lightning's
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if page.stem in LONG else ()) for page in WITH_CODE],
    ids=lambda page: page.stem,
)
def test_blocks_run_and_say_what_the_page_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for package in ("lightning", "transformers", "accelerate"):
        if re.search(rf"^(import|from) {package}\b", page.read_text(), re.MULTILINE):
            if find_spec("torchvision") is not None:
                import_models()  # which others import in their turn
            pytest.importorskip(package)
    write_run(tmp_path / "runs" / "a", LENET)
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "net"}
    said, expected = "", None
    for kind, text in [*blocks(page, "python", "text"), ("python", "")]:
        if kind == "text":
            expected = text
            continue
        if expected is None:
            assert not re.match(r"\w+Error: ", said), said
        else:
            assert " ".join(said.split()) == " ".join(expected.split())
        said, expected = run_block(text, names), None


def commands(page: Path) -> list[str]:
    text = "\n".join(text for _, text in blocks(page, "", "sh"))
    lines = text.replace("\\\n", " ").splitlines()
    return [line.partition("#")[0].strip() for line in lines if line.startswith("archlearn ")]


COMMANDS = sorted({line for page in [ROOT / "README.md", *PAGES] for line in commands(page)})


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_on_the_pages_are_understood(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)  # files that --config and --resume read
    for name in ("run.toml", "runs/a/config.toml"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    _, bound, _ = app.parse_args(shlex.split(command)[1:], exit_on_error=False, print_error=False)
    assert bound is not None


def test_the_page_of_defaults_has_the_numbers_of_the_code() -> None:
    text = (ROOT / "docs" / "defaults.md").read_text()
    settings = derive_sizes(RunSettings(), 55_000, 1)
    optimizer, gates, strengths = settings.optimizer, settings.gates, settings.strengths
    for words in (
        f"| {settings.batch_size}, or a tenth of the train examples",
        f"enough for {ENOUGH_STEPS:,} steps, at most {MOST_EPOCHS} |",
        f"{optimizer.learning_rate} (SGD, momentum {optimizer.momentum})",
        f"`clip_norm` | {optimizer.clip_norm:g} |",
        f"{COST_OF_ALL_NEURONS} × loss of a guess ÷ number of neurons",
        f"`ratio` (λ3 / λ1) | {strengths.ratio} |",
        f"λ4 / λ3) | {strengths.depth_share} |",
        f"{TRAVEL} ÷ (width cost × steps",
        f"{MOST_TRAVEL_A_STEP} × steps in which gates move",
        f"`freeze_for` | {gates.start_after}, {gates.freeze_for} |",
        f"`depth_start` | {gates.width_start}, {gates.depth_start} |",
    ):
        assert words in text


def test_the_settings_on_the_page_are_settings() -> None:
    ((_, text),) = blocks(ROOT / "docs" / "command-line.md", "toml")
    settings = from_table(RunSettings, tomllib.loads(text))
    assert settings.gates.leave == ("conv1",)
    assert settings.gates.budget == ("multiply_adds=50%",)
