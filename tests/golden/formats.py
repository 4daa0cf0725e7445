"""Files that earlier versions wrote: a later version must read and compute the same.

`python -m tests.golden.formats` writes them anew; do that only when a format is meant to change.
"""

from pathlib import Path

import torch
from torch import Tensor, nn

import archlearn as al

FOLDER = Path(__file__).with_name("files")
KINDS = ("dense", "convolutions")


def make_gated(kind: str) -> tuple[nn.Module, Tensor]:
    """Return a gated network of some kind and an input."""
    torch.manual_seed(0)
    if kind == "convolutions":
        net = nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(),
            nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5),
        )  # fmt: skip
        x = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    else:
        net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
        x = torch.randn(2, 6, dtype=torch.float64)
    net = net.double().eval()
    return al.add_gates(net, x), x


def close_some_(model: nn.Module) -> None:
    """Close every third gate."""
    with torch.no_grad():
        for gate in al.width_gates(model).values():
            gate[::3] = 0.0


def main() -> None:
    """Write all files."""
    FOLDER.mkdir(exist_ok=True)
    for kind in KINDS:
        model, x = make_gated(kind)
        close_some_(model)
        compact = al.compact(model.eval())
        al.save(compact, FOLDER / f"{kind}.safetensors", x)
        kept = {"state": model.state_dict(), "input": x, "output": compact(x).detach()}
        torch.save(kept, FOLDER / f"{kind}.pt")


if __name__ == "__main__":
    main()
