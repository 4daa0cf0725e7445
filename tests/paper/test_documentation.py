"""The documentation says what the results say: `archlearn paper --docs` would change nothing."""

import shutil
from pathlib import Path

from archlearn_paper.documentation import write_documentation

ROOT = Path(__file__).parents[2]


def test_pages_and_figures_are_those_of_the_results(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    for page in (ROOT / "docs").glob("*.md"):
        shutil.copy(page, docs)
    write_documentation(ROOT / "results", docs)
    for made in [*docs.glob("*.md"), *(docs / "figures").glob("*.svg")]:
        kept = ROOT / "docs" / made.relative_to(docs)
        assert made.read_bytes() == kept.read_bytes(), f"run: archlearn paper --docs ({made.name})"
