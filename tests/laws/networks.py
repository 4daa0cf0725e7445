"""A program becomes a network whose forward runs the blocks one after the other."""

from typing import Any

import torch
from torch import Tensor, nn

import tests.laws.channels
import tests.laws.joins
import tests.laws.layers
import tests.laws.mixers
import tests.laws.spaces
from tests.laws.layers import Maker, Shape
from tests.laws.pieces import Calls, activation, pointwise
from tests.laws.programs import Block, Chooser, Program, programs

BATCH = 2
# Beyond these, an example would take long and show nothing new.
MOST_CHANNELS, MOST_NUMBERS = 16, 1200

MAKERS: dict[str, Maker] = {
    **tests.laws.layers.MAKERS,
    **tests.laws.joins.MAKERS,
    **tests.laws.spaces.MAKERS,
    **tests.laws.channels.MAKERS,
    **tests.laws.mixers.MAKERS,
}
# Layers and joins are what people's networks consist of: they come three times as often.
KINDS = [
    *(("plain",) * 3 + ("pair",) * 2),
    *(2 * tuple(tests.laws.layers.MAKERS)),
    *(2 * tuple(tests.laws.joins.MAKERS)),
    *tests.laws.spaces.MAKERS,
    *tests.laws.channels.MAKERS,
    *tests.laws.mixers.MAKERS,
]
SHAPES: list[Shape] = [
    (5,), (2, 6, 6), (3, 5, 5), (1, 8, 8), (3, 6, 5), (2, 7, 7), (2, 6), (3, 5), (2, 4, 3, 4),
]  # fmt: skip
# A network starts with a layer, or seldom would anything in it be learnt.
STARTS = ["plain", "pair", "residual", "concat", "halves", "skip", "excite"]
NETWORKS = programs(STARTS, KINDS, SHAPES)
# Nothing but streams, norms, branches, and what stands between them.
_OF_STREAMS = ["stream", "group_normed", "stacked", "transformer", "headed", "mixed", "residual"]
STREAMS = programs(_OF_STREAMS[:3], [*_OF_STREAMS, "plain"], SHAPES)
HEADS = programs(["headed"], ["headed", "stream", "plain"], [(2, 6), (3, 5), (2, 6, 6)])


class Network(nn.Module):
    """Blocks, the head behind the last, and perhaps one in the middle."""

    def __init__(self, blocks: list[nn.Module], heads: dict[int, nn.Module], form: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.heads = nn.ModuleDict({str(place): head for place, head in heads.items()})
        self.form = form

    def forward(self, x: Tensor) -> Any:
        outputs: list[Tensor] = []
        for place, block in enumerate(self.blocks):
            x = block(x)
            if str(place) in self.heads:
                outputs.append(self.heads[str(place)](x))
        if self.form == "dict":
            return {f"output {place}": output for place, output in enumerate(outputs)}
        return outputs[0] if len(outputs) == 1 else tuple(outputs)


def pooled(shape: Shape, *layers: nn.Module) -> nn.Module:
    """Return a classifier behind the mean over space."""
    dims = tuple(range(2, 1 + len(shape)))
    return nn.Sequential(*[Calls(lambda x: x.mean(dims))] * bool(dims), *layers)


def build(program: Program) -> Network:
    """Return the network of a program in float64, in evaluation mode."""
    torch.manual_seed(program.seed)
    shape, blocks, shapes = program.shape, list[nn.Module](), list[Shape]()
    for block in program.blocks:
        made = MAKERS[block.kind](shape, block.width, Chooser(block))
        after = None if made is None else _shape_behind(made, shape)
        if made is not None and after is not None:
            shape = after
            blocks.append(made)
            shapes.append(shape)
    if not blocks:
        blocks.append(nn.Identity())
        shapes.append(shape)
    net = Network(blocks, *_heads(program.head, shapes)).double().eval()
    randomise_(net, program.seed)
    return net


def inputs_of(program: Program, seed: int) -> Tensor:
    """Return a batch of random inputs."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(BATCH, *program.shape, generator=generator, dtype=torch.float64)


@torch.no_grad()
def randomise_(net: nn.Module, seed: int) -> None:
    """Give every parameter and every statistic a value that is not its default."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in [*net.named_parameters(), *net.named_buffers()]:
        drawn = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        if not tensor.is_floating_point():
            continue
        if name.endswith("running_var"):
            tensor.copy_(drawn.abs() + 0.5)
        elif tensor.dim() > 1 and "original0" not in name:
            fan_in = tensor[0].numel()
            tensor.copy_(drawn * (1.5 / fan_in) ** 0.5)
        else:
            tensor.copy_(drawn)


def _shape_behind(made: nn.Module, shape: Shape) -> Shape | None:
    with torch.no_grad():
        after = tuple(made.eval()(torch.zeros(BATCH, *shape)).shape)
    if after[0] != BATCH or after[1] > MOST_CHANNELS * 8 or torch.Size(after).numel() == 0:
        return None
    many = after[1] > MOST_CHANNELS and len(after) > 2
    return None if many or torch.Size(after[1:]).numel() > MOST_NUMBERS else after[1:]


def _heads(block: Block, shapes: list[Shape]) -> tuple[dict[int, nn.Module], str]:
    pick = Chooser(block)
    last = len(shapes) - 1
    heads = {last: _head(shapes[last], pick)}
    if last and pick((False, False, True)):
        place = pick(range(last))
        heads[place] = _head(shapes[place], pick)
    return heads, pick(("tuple", "dict"))


def _head(shape: Shape, pick: Chooser) -> nn.Module:
    n = shape[0]
    n_flat = torch.Size(shape).numel()
    made = (
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(n_flat, 3)),
        lambda: pooled(shape, nn.Linear(n, 3)),
        lambda: pooled(shape, nn.Linear(n, 4), nn.ReLU(), nn.Linear(4, 3)),
        lambda: pooled(shape, nn.Linear(n, 4), activation(4, pick), nn.Linear(4, 3)),
        lambda: nn.Sequential(activation(n, pick), nn.Flatten(), nn.Linear(n_flat, 2)),
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(n_flat, 5), nn.GELU(), nn.Linear(5, 2)),
        lambda: pointwise(n, 3, len(shape) - 1, pick),
        nn.Identity,
    )
    return pick(made)()
