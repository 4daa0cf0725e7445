"""What the README and the pages promise is what the package does."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

import archlearn as al

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def python_blocks(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)


def test_the_example_of_the_readme_runs_and_keeps_its_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = python_blocks(README)
    packages = set(re.findall(r"^(?:import|from) (\w+)", block, flags=re.MULTILINE))
    assert packages == {"archlearn", "torch"}  # what a plain install has
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    exec(compile(block, "README.md", "exec"), names)
    model, small, x = names["model"].eval(), names["small"].eval(), names["x"]
    torch.testing.assert_close(small(x), model(x), rtol=1e-4, atol=1e-4)
    before, after = al.count_costs(names["net"], x[:2]), al.count_costs(small, x[:2])
    assert after.parameters < before.parameters / 2
    assert (small(x).argmax(1) == names["y"]).float().mean() > 0.9
    printed, (shown,) = (
        capsys.readouterr().out,
        re.findall(r"^```text\n(.*?)^```", README, re.M | re.S),
    )
    assert without_numbers(printed) == without_numbers(shown)


def without_numbers(text: str) -> list[str]:
    return re.sub(r"\d[\d.,]*(e-\d+)?", "N", text).split()


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 100
    assert len(re.findall(r"\]\(", README)) <= 20
    assert len(re.findall(r"\d[\d.,]*", README)) <= 60


def test_the_numbers_of_the_readme_stand_in_the_results_that_it_links_to() -> None:
    """Of each point of "Three numbers", the bold number and those with an error."""
    section = README.partition("## Three numbers")[2].partition("\n## ")[0]
    points = re.split(r"^\* ", section, flags=re.MULTILINE)[1:]
    assert len(points) == 3
    for point in points:
        (page,) = re.findall(r"\]\((results/[^)]+)\)", point)
        text = (ROOT / page).read_text()
        for number, error in re.findall(r"(\d+\.\d+) ± (\d+\.\d+)", point):
            pair = rf"(?<![\d.]){re.escape(number)}[^\d\n]*{re.escape(error)}(?!\d)"
            assert re.search(pair, text), (page, number)
        (bold,) = re.findall(r"\*\*(.*?)\*\*", point)
        for number in re.findall(r"\d[\d.]*", bold):
            assert number in text, (page, number)


def test_every_public_name_has_a_place_in_the_reference() -> None:
    reference = (ROOT / "docs" / "reference.md").read_text()
    documented = set(re.findall(r"^::: archlearn\.[\w.]*?(\w+)$", reference, flags=re.MULTILINE))
    errors = {name for name in al.__all__ if name.endswith("Error")}
    assert "errors" in documented
    assert set(al.__all__) - errors - documented == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = (ROOT / "CITATION.cff").read_text()
    assert project["version"] == al.__version__
    assert f"version: {al.__version__}" in citation
    assert "Learning Neural Network Architectures using Backpropagation" in citation


def test_pins_are_exact_and_name_no_place() -> None:
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    assert "torch==2.13.0" in pins
    assert "torchvision==0.28.0" in pins
    assert [pin for pin in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", pin)] == []
