"""Count lines of code by part, without blank lines, comments and docstrings; and vague names.

    python -m benchmarks.size          # prints the counts
    python -m benchmarks.size --check  # fails where a part is above its limit

Vague names say that something was computed, not what: `found`, `made`, `given`. The limits in
`pyproject.toml` are a ratchet: the numbers of the last commit. A commit that raises one says in
its body what a user gets for it.
"""

import argparse
import ast
import io
import sys
import tokenize
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}

_VAGUE = {
    "found", "each", "made", "known", "given", "own", "place", "said", "told", "beside", "anew",
}  # fmt: skip


def count_vague_names(folder: Path) -> int:
    """Return how many identifiers in the Python files of a folder are vague."""
    sources = (path.read_text("utf-8") for path in folder.rglob("*.py"))
    tokens = (tokenize.generate_tokens(io.StringIO(source).readline) for source in sources)
    return sum(t.type == tokenize.NAME and t.string in _VAGUE for file in tokens for t in file)


def count_lines(source: str) -> int:
    """Return how many lines of a Python file hold code."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for line in node.body:
            if (
                isinstance(line, ast.Expr)
                and isinstance(line.value, ast.Constant)
                and isinstance(line.value.value, str)
            ):
                docstrings.update(range(line.lineno, (line.end_lineno or line.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def count_part(folder: Path) -> int:
    """Return how many lines of code the Python files of a folder hold."""
    return sum(count_lines(path.read_text("utf-8")) for path in folder.rglob("*.py"))


def main() -> None:
    """Print the size of each part, and fail with `--check` where one is above its limit."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail where a part is too large")
    check = parser.parse_args().check
    limits = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["size"]
    most_vague = limits.pop("vague names")
    n_vague = sum(count_vague_names(ROOT / folder) for folder in limits)
    print(f"{'vague names':24} {n_vague:7,}                limit {most_vague:7,}")
    sizes = {folder: count_part(ROOT / folder) for folder in limits}
    for folder, size in sizes.items():
        print(f"{folder:24} {size:7,} lines of code, limit {limits[folder]:7,}")
    large = [folder for folder, size in sizes.items() if size > limits[folder]]
    if check and n_vague > most_vague:
        sys.exit("found, made, given and the like are no names: say what was computed")
    if check and large:
        sys.exit(
            f"{', '.join(large)} has grown: delete as much elsewhere, or raise the limit in "
            "pyproject.toml and say in the commit's body what a user gets for it"
        )


if __name__ == "__main__":
    main()
