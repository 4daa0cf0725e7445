"""Rivals of learnt gates: networks of the same cost, sized or cut by other methods, then trained.

    python -m benchmarks.rivals KIND FOLDER name=value ... [like=RUN]

Makes the network of KIND (see `KINDS`) for a ResNet at half of its multiply-adds, and trains it as
`python -m benchmarks.single_run FOLDER name=value ...` does, with `learn=nothing`. `like` is a
finished run of ours whose sizes are taken over. All cuts are made by our own surgery, which is
exact on option-A shortcuts.
"""

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

import archlearn as al
from archlearn.gating.gate_container import find_container
from archlearn_cli.data.file_cache import GATES, no_progress
from archlearn_cli.models.cifar_networks import BasicBlock, ResNet, draw_weights_
from archlearn_cli.models.model_registry import build_network
from archlearn_cli.training.initial_model import start_network
from archlearn_cli.training.objectives import objective_of
from archlearn_cli.training.run_directory import COMPACT, read_lines
from archlearn_cli.training.run_setup import load_dataset
from archlearn_cli.training.settings import RunSettings, override
from benchmarks.single_run import learn_by_words as train
from benchmarks.single_run import parse_value

SHARE = 0.5
EXAMPLE = (2, 3, 32, 32)
_BATCHES, _BATCH = 40, 250
_SPARSE_EPOCHS = 20
_L0_COST = 2.0
"""Nats for all multiply-adds that gates stand for. About half of them are to fall: 1 left 75 % of
them open on ResNet-20 (1,350 steps of 32 train images), 3 left 53 %, and on ResNet-56 47 % after
650 steps, falling; 2 lies between."""
_L1 = 1.7e-3
"""L1 of BatchNorm scales: times rate and steps what Torch-Pruning's recipe for ResNet-56 has on
CIFAR-10 (5e-4, 100 epochs of batches of 128, at 0.01, a tenth of it from epoch 60)."""


_TEMPERATURE = 2 / 3
_LOWEST, _HIGHEST = -0.1, 1.1
"""Draws are stretched to this interval before they are clipped to [0, 1]."""
_SPAN = 10.0
"""Log odds that a unit of a hard concrete gate stands for; at 0.5 and below it is settled at 0."""
_CLOSING_ODDS = math.log(-_LOWEST / _HIGHEST)


class _HardConcrete(nn.Module):
    """A BatchNorm whose channels are multiplied by gates that are drawn in each training step.

    The ReLU behind it lets factors pass, so the gates may as well be behind the activation.
    """

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.norm = norm
        start = _gate_of(math.log(0.7 / 0.3))
        self.gate = nn.Parameter(torch.full((norm.num_features,), start))

    def forward(self, x: Tensor) -> Tensor:
        odds = self.log_odds()
        if self.training:
            tiny = torch.finfo(odds.dtype).eps
            odds = (torch.rand_like(odds).clamp(tiny, 1 - tiny).logit() + odds) / _TEMPERATURE
        return self.norm(x) * _stretch(odds)[:, None, None]

    def log_odds(self) -> Tensor:
        return _CLOSING_ODDS + _SPAN * (self.gate - 0.5)

    def count_expected(self) -> Tensor:
        """Return the number of gates that are not 0 in a draw, as is to be expected."""
        return torch.sigmoid(self.log_odds() - _TEMPERATURE * _CLOSING_ODDS).sum()

    @torch.no_grad()
    def fold(self) -> nn.BatchNorm2d:
        """Return the norm with its gates in its weights, those of closed gates as they are."""
        scale = _stretch(self.log_odds())
        scale = torch.where(scale > 0, scale, 1.0)
        self.norm.weight.mul_(scale)
        self.norm.bias.mul_(scale)
        return self.norm


def _stretch(odds: Tensor) -> Tensor:
    return (torch.sigmoid(odds) * (_HIGHEST - _LOWEST) + _LOWEST).clamp(0.0, 1.0)


def _gate_of(log_alpha: float) -> float:
    return 0.5 + (log_alpha - _CLOSING_ODDS) / _SPAN


_L0_RANGE = _gate_of(-math.log(100)), _gate_of(math.log(100))


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
    filters = {
        name: layer.weight.detach().flatten(1).norm(dim=1)
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Conv2d)
    }
    sums = _sum_by_gate(model, filters)
    return _cut(model, {n: total / total.mean() for n, total in sums.items()}, cost_power=0.0)


def l0(settings: RunSettings, like: Path) -> nn.Module:
    """Return the pretrained network cut by the log odds of L0 gates (Louizos et al. 2018).

    As in their ResNets, gates stand behind the first convolution of each block; log alpha starts at
    log(0.7 / 0.3) and stays within ±log 100. The penalty is in expected multiply-adds. A channel
    that is kept is multiplied by its gate as it acts when nothing is drawn, if that is not 0.
    """
    del like
    network = start_network(settings, load_dataset(settings, no_progress))
    blocks = {n: m for n, m in network.named_modules() if isinstance(m, BasicBlock)}
    gated = {name: _HardConcrete(block.bn1) for name, block in blocks.items()}
    costs: dict[str, int] = {}  # of a channel, in multiply-adds but for what all have in common
    for name, block in blocks.items():
        side = 32 // 2 ** (int(name.removeprefix("layer")[0]) - 1)
        costs[name] = side**2 * (block.conv1.in_channels + block.conv2.out_channels)
        network.set_submodule(f"{name}.bn1", gated[name])
    whole = sum(costs[name] * len(each.gate) for name, each in gated.items())

    def penalty() -> Tensor:
        terms = [costs[name] * each.count_expected() for name, each in gated.items()]
        return _L0_COST / whole * torch.stack(terms).sum()

    _train_sparse_(network, settings, penalty, [each.gate for each in gated.values()])
    scores = {f"{name}.conv1": each.gate.detach() for name, each in gated.items()}
    flat = torch.cat(list(scores.values()))
    print(f"L0: {int((flat > 0.5).sum())} of {len(flat)} gates are open", file=sys.stderr)
    for name, each in gated.items():
        network.set_submodule(f"{name}.bn1", each.fold())
    learn = {"layer*.conv1": al.Learn.WIDTH}
    model = al.add_gates(network, torch.randn(EXAMPLE), learn=learn)
    return _cut(model, scores, cost_power=0.0)


def sparse_learning(settings: RunSettings, like: Path) -> nn.Module:
    """Return the pretrained network cut by its BatchNorm scales, after L1 on them.

    Network slimming (Liu et al. 2017), as Torch-Pruning's BNScalePruner: |scale| over all layers,
    its mean where several layers write a channel.
    """
    del like
    network = start_network(settings, load_dataset(settings, no_progress))
    norms = {n: m for n, m in network.named_modules() if isinstance(m, nn.BatchNorm2d)}
    weights: list[Tensor] = [norm.weight for norm in norms.values()]
    _train_sparse_(network, settings, lambda: _L1 * torch.cat(weights).abs().sum())
    model = _add_gates(network)
    scales = {name: norm.weight.detach().abs() for name, norm in norms.items()}
    sums = _sum_by_gate(model, scales)
    counts = _sum_by_gate(model, {n: torch.ones_like(scale) for n, scale in scales.items()})
    return _cut(model, {name: sums[name] / counts[name] for name in sums}, cost_power=0.0)


KINDS: dict[str, Callable[[RunSettings, Path], nn.Module]] = {
    "uniform_widths": uniform_widths,
    "learnt_sizes": learnt_sizes,
    "random_channels": random_channels,
    "taylor": taylor,
    "magnitude": magnitude,
    "l0": l0,
    "sparse_learning": sparse_learning,
}


def _whole(settings: RunSettings) -> nn.Module:
    return build_network(settings.model, EXAMPLE[1:], 10)


def _gated(settings: RunSettings) -> nn.Module:
    """Return the pretrained network with gates, all open."""
    return _add_gates(start_network(settings, load_dataset(settings, no_progress)))


def _add_gates(network: nn.Module) -> nn.Module:
    return al.add_gates(network, torch.randn(EXAMPLE), learn={"*": al.Learn.WIDTH})


def _train_sparse_(
    model: nn.Module,
    settings: RunSettings,
    penalty: Callable[[], Tensor],
    gates: Iterable[Tensor] = (),
) -> None:
    """Train a model, and its L0 gates, with a penalty, at a constant rate; return it to the CPU."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model.to(device).train()
    data = load_dataset(settings, no_progress)
    objective = objective_of(data).to(device)
    images, targets = data.train.inputs.to(device), data.train.targets.to(device)
    gates = list(gates)
    weights = [p for p in model.parameters() if not any(p is gate for gate in gates)]
    options = settings.optimizer
    groups = [{"params": weights, "weight_decay": options.weight_decay}, {"params": gates}]
    sgd = torch.optim.SGD(groups, options.learning_rate or 0.02, options.momentum)
    is_bf16 = settings.hardware.precision == "bf16-mixed"
    for epoch in range(min(_SPARSE_EPOCHS, settings.epochs or _SPARSE_EPOCHS)):
        total = torch.zeros((), device=device)
        for batch in torch.randperm(len(images), device=device).split(
            settings.batch_size or _BATCH
        ):
            inputs = objective.training_inputs(images[batch])
            with torch.autocast(device.type, torch.bfloat16, enabled=is_bf16):
                loss = objective.loss(model(inputs), targets[batch])
            (loss + penalty()).backward()
            sgd.step()
            sgd.zero_grad()
            total += loss.detach() * len(batch)
            with torch.no_grad():
                for gate in gates:
                    gate.clamp_(*_L0_RANGE)
        mean = float(total) / len(images)
        print(f"sparse stage, epoch {epoch + 1}: loss {mean:.3f}", file=sys.stderr, flush=True)
    model.cpu()


def _sum_by_gate(model: nn.Module, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return for each gate the sum of the values of what writes its channels, by layer."""
    container = find_container(model)
    assert container is not None
    channel_graph = container.channel_graph
    place_of, sizes = channel_graph.gate_places(), channel_graph.group_sizes().tolist()
    flat = torch.zeros(sum(sizes))
    for name, value in values.items():
        own = place_of[channel_graph.dims[f"{name}.weight", 0]]
        flat.index_add_(0, own[own >= 0], value[own >= 0])
    names = [group.name for group in channel_graph.groups]
    return dict(zip(names, flat.split(sizes), strict=True))


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
