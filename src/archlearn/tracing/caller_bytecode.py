"""What a line of `forward` does with a traced value is told by the line itself.

The text of a size is a message, or something to decide by; a class is asked for, or looked up.
"""

import ast
import dis
import itertools
import linecache
from functools import lru_cache
from types import FrameType

_SPEAKING = frozenset({
    "_assert", "print", "debug", "info", "warning", "warn", "error", "exception", "critical", "log",
})  # fmt: skip
_SPEAKERS = ("logging", "warnings", "traceback")


def is_message(frame: FrameType) -> bool:
    """Return whether the text that is made at a frame is only printed, logged or raised."""
    if str(frame.f_globals.get("__name__")).split(".")[0] in _SPEAKERS:
        return True
    statement = _find_statement(frame.f_code.co_filename, frame.f_lineno)
    if isinstance(statement, ast.Raise | ast.Assert):
        return True
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    called = statement.value.func
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    return name in _SPEAKING


def asks_for_class(frame: FrameType) -> bool:
    """Return whether a frame asks for a value's class by `isinstance`, `__class__` or `case`."""
    instruction = dis.opname[frame.f_code.co_code[frame.f_lasti]]
    if "CALL" not in instruction:
        return instruction in ("LOAD_ATTR", "MATCH_CLASS")
    places = itertools.islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)
    line, _, column, _ = next(places, (None, None, None, None))
    if line is None or column is None:
        return False
    text = linecache.getline(frame.f_code.co_filename, line).encode()[column:]
    return text.startswith((b"isinstance", b"builtins.isinstance"))


def _find_statement(path: str, line: int) -> ast.stmt | None:
    """Return the innermost statement of a file that holds a line."""
    around = [
        node for node in _statements(path) if node.lineno <= line <= (node.end_lineno or line)
    ]
    return min(around, key=lambda node: (node.end_lineno or 0) - node.lineno, default=None)


@lru_cache(maxsize=64)
def _statements(path: str) -> tuple[ast.stmt, ...]:
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:
        return ()
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.stmt))
