"""Run the blocks of code on the tutorial pages and write down what they print.

`python -m benchmarks.tutorials [FILES]` rewrites each ```text block that follows a block of code,
folded to the width of a page, and puts the pictures that a page draws into `docs/figures`. Pages
that need weights or data which the package does not fetch find them in the folder FILES; where they
are not, the page is left as it is.
"""

import contextlib
import io
import linecache
import os
import re
import shutil
import sys
import tempfile
import textwrap
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.torchvision_import import import_models

DOCS = Path(__file__).parents[1] / "docs"
PAGES = (
    *("tutorial-cnn.md", "tutorial-resnet.md", "tutorial-transformer.md", "tutorial-own-block.md"),
    *("your-own-model.md", "training-loops.md", "export.md"),
)
NEEDED = {
    "tutorial-resnet.md": ("resnet20.safetensors",),
    "tutorial-transformer.md": ("minilm", "sst2"),
}
_WIDTH = 80  # of a block on a page
_BLOCK = re.compile(r"^```python\n(.*?)^```$(\n\n```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE)


def run_page(text: str) -> str:
    """Return a page with what its blocks print now; they run one after the other."""
    torch.manual_seed(0)
    names: dict[str, Any] = {"__name__": "net"}

    def run(found: re.Match[str]) -> str:
        # `inspect` tells where in the source a call stands.
        lines = found[1].splitlines(keepends=True)
        linecache.cache["net.py"] = (len(found[1]), None, lines, "net.py")
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(found[1], "net.py", "exec"), names)
        if found[2] is None:
            return found[0]
        said = "\n".join(line.rstrip() for line in printed.getvalue().rstrip().splitlines())
        return f"```python\n{found[1]}```\n\n```text\n{fold(said, _WIDTH, indent='    ')}\n```"

    return _BLOCK.sub(run, text)


_LEAST_CELLS = 20  # characters before the last cell of a row that is broken there


def fold(text: str, width: int, indent: str) -> str:
    """Return lines broken at a width, in front of the last cell of a table's row, or at words.

    What follows a break is indented.
    """
    return "\n".join(part for line in text.splitlines() for part in _fold_line(line, width, indent))


def _fold_line(line: str, width: int, indent: str) -> list[str]:
    cells, gap, last = line.rpartition("  ")
    is_row = len(line) > width and gap and len(cells) > _LEAST_CELLS
    whole, rest = ([cells.rstrip()], indent + last) if is_row else ([], line)
    return whole + (
        textwrap.wrap(
            rest, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        )
        or [""]
    )


def main() -> None:
    if find_spec("torchvision") is not None:
        import_models()  # which others import in their turn
    home, files = Path.cwd(), [Path(word).resolve() for word in sys.argv[1:]]
    for name in PAGES:
        page = DOCS / name
        missing = [
            needed
            for needed in NEEDED.get(name, ())
            if not files or not (files[0] / needed).exists()
        ]
        if missing:
            print(f"{page}: left as it is, for it needs {', '.join(missing)}")
            continue
        with tempfile.TemporaryDirectory() as folder:
            for needed in NEEDED.get(name, ()):
                (Path(folder) / needed).symlink_to(files[0] / needed)
            os.chdir(folder)
            try:
                page.write_text(run_page(page.read_text("utf-8")), "utf-8")
                for picture in Path(folder).glob("*.svg"):
                    shutil.copyfile(picture, DOCS / "figures" / picture.name)
            finally:
                os.chdir(home)
        print(page)


if __name__ == "__main__":
    main()
