"""Rivals of learnt gates: networks of the same cost, sized or cut by other methods, then trained.

    python -m benchmarks.rivals KIND FOLDER name=value ... [like=RUN]

Makes the network of KIND (see `KINDS`) for a ResNet at half of its multiply-adds, and trains it as
`python -m archlearn.training FOLDER name=value ...` does, with `learn=nothing`. `like` is a
finished run of ours whose sizes are taken over. All cuts are made by our own surgery, which is
exact on option-A shortcuts.
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

import archlearn as al
from archlearn.data.file_cache import GATES, no_progress
from archlearn.gating.gate_container import find_store
from archlearn.models.cifar_networks import ResNet, draw_weights_
from archlearn.models.model_registry import build_network
from archlearn.training.__main__ import learn_by_words as train
from archlearn.training.__main__ import parse_value
from archlearn.training.initial_model import start_network
from archlearn.training.objectives import objective_of
from archlearn.training.run_directory import COMPACT, read_lines
from archlearn.training.run_setup import load_dataset
from archlearn.training.settings import RunSettings, override

SHARE = 0.5
EXAMPLE = (2, 3, 32, 32)
_BATCHES, _BATCH = 40, 250


def uniform_widths(settings: RunSettings, like: Path) -> nn.Module:
    """Return a fresh ResNet whose widths are all the same part of the original ones."""
    del like
    example = torch.zeros(EXAMPLE)
    limit = SHARE * al.count_costs(_whole(settings), example).multiply_adds
    n, blocks = int(SHARE**0.5 * 16), {"resnet20": 3, "resnet56": 9}[settings.model]
    near = [ResNet(blocks, widths=(n, 2 * n + i, 4 * n + j)) for i in range(2) for j in range(4)]
    costs = [al.count_costs(network, example).multiply_adds for network in near]
    return max(zip(costs, near, strict=True), key=lambda pair: (pair[0] <= limit, pair[0]))[1]


def learnt_sizes(settings: RunSettings, like: Path) -> nn.Module:
    """Return the network that a run of ours ended with, its weights drawn anew."""
    del settings
    network = al.load(like / COMPACT)
    with torch.no_grad():
        draw_weights_(network)
        for layer in network.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.reset_parameters()
    return network


def random_channels(settings: RunSettings, like: Path) -> nn.Module:
    """Return the pretrained network with as many channels of each group as ours, at random."""
    model = _gated(settings)
    learnt: Mapping[str, list[float]] = read_lines(like / GATES)[-1]["width"]
    with torch.no_grad():
        for name, gate in al.width_gates(model).items():
            n_open = sum(value >= 0.5 for value in learnt[name])
            gate.zero_()
            gate[torch.randperm(len(gate))[:n_open]] = 1.0
    return al.compact(model)


def taylor(settings: RunSettings, like: Path) -> nn.Module:
    """Return the pretrained network cut at once by squared gate gradients (Molchanov et al. 2019).

    Per cost, which helps it (docs/how-gates-learn.md).
    """
    del like
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = _gated(settings).to(device).eval()
    data = load_dataset(settings, no_progress)
    objective = objective_of(data).to(device)
    gates = al.width_gates(model)
    scores = {name: torch.zeros_like(gate) for name, gate in gates.items()}
    for batch in torch.randperm(len(data.train))[: _BATCHES * _BATCH].split(_BATCH):
        inputs = objective.training_inputs(data.train.inputs[batch].to(device))
        loss = objective.loss(model(inputs), data.train.targets[batch].to(device))
        found = torch.autograd.grad(loss, list(gates.values()))
        for score, gradient in zip(scores.values(), found, strict=True):
            score += gradient.square()
    return _cut(model.cpu(), {n: score.cpu() for n, score in scores.items()}, cost_power=1.0)


def magnitude(settings: RunSettings, like: Path) -> nn.Module:
    """Return the pretrained network cut at once by the size of its filters, over all layers.

    As Torch-Pruning's global magnitude pruner does: L2 norms of what writes a channel, set against
    the mean of its group.
    """
    del like
    model = _gated(settings)
    store = find_store(model)
    assert store is not None
    place = torch.full((len(store.choice.blueprint.root),), -1)
    groups = store.choice.blueprint.groups
    channels = torch.cat([group.channels for group in groups])
    place[channels] = torch.arange(len(channels))
    flat = torch.zeros(len(channels))
    for name, written in store.choice.rows:
        weight = model.get_submodule(name).weight
        assert isinstance(weight, Tensor)
        own = place[written]
        flat.index_add_(0, own[own >= 0], weight.detach().flatten(1).norm(dim=1)[own >= 0])
    pieces = flat.split([len(group.channels) for group in groups])
    scores = {g.name: piece / piece.mean() for g, piece in zip(groups, pieces, strict=True)}
    return _cut(model, scores, cost_power=0.0)


KINDS: dict[str, Callable[[RunSettings, Path], nn.Module]] = {
    "uniform_widths": uniform_widths,
    "learnt_sizes": learnt_sizes,
    "random_channels": random_channels,
    "taylor": taylor,
    "magnitude": magnitude,
}


def _whole(settings: RunSettings) -> nn.Module:
    return build_network(settings.model, EXAMPLE[1:], 10)


def _gated(settings: RunSettings) -> nn.Module:
    """Return the pretrained network with gates, all open."""
    network = start_network(settings, load_dataset(settings, no_progress))
    return al.add_gates(network, torch.randn(EXAMPLE), learn={"*": al.Learn.WIDTH})


def _cut(model: nn.Module, scores: Mapping[str, Tensor], *, cost_power: float) -> nn.Module:
    """Return the model cut once to its share of multiply-adds, by a score of each channel."""
    schedule = al.GateSchedule(cost_power=cost_power)
    budget = {"multiply_adds": f"{100 * SHARE:g}%"}
    gates = al.GateOptimizer(model, 1, budget=budget, schedule=schedule)
    for name, gate in al.width_gates(model).items():
        gates.state[gate]["mean"] = scores[name].detach().clone()
    gates.finish()
    return al.compact(model)


def main(words: list[str]) -> int:
    """Make a rival's network, train it, and put its costs into the summary."""
    kind, folder, *rest = words
    pairs = {name: value for name, _, value in (word.partition("=") for word in rest)}
    like = Path(pairs.pop("like", ""))
    settings = override(RunSettings(), {name: parse_value(v) for name, v in pairs.items()})
    torch.manual_seed(settings.seed)
    network = KINDS[kind](settings, like)
    start = Path(f"{folder}-start.safetensors")
    start.parent.mkdir(parents=True, exist_ok=True)
    al.save(network, start, torch.randn(EXAMPLE))
    pairs |= {"start_from": str(start), "learn": "nothing"}
    code = train([folder, *(f"{name}={value}" for name, value in pairs.items())])
    if code == 0:
        path = Path(folder) / "summary.json"
        summary = json.loads(path.read_text())
        whole = al.count_costs(_whole(settings), torch.zeros(EXAMPLE)[:1])
        summary["before"] |= {"parameters": whole.parameters, "multiply_adds": whole.multiply_adds}
        path.write_text(json.dumps(summary))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
