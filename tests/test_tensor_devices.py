"""The library names the device of each tensor that it makes, whatever torch's default device is.

`tests/test_zoo.py` shows it by running; this finds what it does not run.
"""

import ast
from pathlib import Path

import torch.utils._device

import archlearn

ROOT = Path(archlearn.__file__).parent
MAKERS = {
    function.__name__
    for function in torch.utils._device._device_constructors()
    if getattr(torch, function.__name__, None) is function
}
# A layer of the user's own is made where torch makes layers; the other call makes no tensor to use.
EXCUSED = {"nn/tristate_activation.py", "tracing/trace_context.py"}


def calls_without_device(source: str) -> list[int]:
    """Return the lines of calls such as `torch.zeros(3)`."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [
        call.lineno
        for call in calls
        if isinstance(call.func, ast.Attribute)
        and ast.unparse(call.func.value) == "torch"
        and call.func.attr in MAKERS
        and "device" not in {keyword.arg for keyword in call.keywords}
    ]


def test_no_tensor_is_made_without_a_device() -> None:
    files = {path.relative_to(ROOT).as_posix(): path for path in ROOT.rglob("*.py")}
    lines = {name: calls_without_device(path.read_text()) for name, path in files.items()}
    assert {name for name, found in lines.items() if found} == EXCUSED


def test_a_call_without_a_device_is_seen() -> None:
    assert calls_without_device("import torch\nx = torch.zeros(3)\ny = x.new_zeros(3)") == [2]
    assert not calls_without_device("torch.zeros(3, device='cpu')")
