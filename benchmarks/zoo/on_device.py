"""What becomes of a network that learns, is shrunk and compacted on a device."""

import copy
import logging
import time
import warnings
from collections.abc import Mapping
from multiprocessing.connection import Connection

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

import archlearn as al
from archlearn.verification.precision import exchanging
from benchmarks.zoo.catalogue import Call, build, draw_inputs, dtype, read_entries, settle_
from benchmarks.zoo.measure import TOLERANCES, Row, call, describe_error, difference, leaves
from tests.zoo import ALL, in_double, randomise_

FAMILIES = ("zoo", "hf", "tv", "timm")
STEPS, SHARE, RATE = 12, "70%", 1e-4
_KINDS = {f"zoo/{kind.name}": kind for kind in ALL}


def list_names() -> list[str]:
    """Return all networks of the sweep: those of `tests/zoo`, and real models in float64."""
    entries = read_entries().items()
    real = [name for name, entry in entries if dtype(entry) is torch.float64]
    return [*_KINDS, *(name for name in real if name.partition("/")[0] in FAMILIES)]


def measure(name: str, device: str) -> Row:
    """Return what became of one network; where it failed, also what becomes of it on the CPU."""
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        row = _measure_on(name, device)
        if device != "cpu" and row["result"] in ("refused", "crash", "wrong"):
            row["cpu"] = _measure_on(name, "cpu")["result"]
    return {"model": name, "device": device, **row, "seconds": time.perf_counter() - start}


def _measure_on(name: str, device: str) -> Row:
    try:
        net, *drawn = _build(name)
        net = net.to(device)
        inputs, fresh = tree_map(lambda x: x.to(device) if isinstance(x, Tensor) else x, drawn)
        call(net, inputs)
    except ImportError as error:
        return {"result": "not installed", "said": describe_error(error)}
    except Exception as error:
        return {"result": "fails by itself", "said": describe_error(error)}
    try:
        gated, optimizers = _learn(net, inputs)
        share, gaps = _cut(gated, optimizers, fresh)
    except al.ArchlearnError as error:
        return {"result": "refused", "said": describe_error(error)}
    except Exception as error:
        return {"result": "crash", "said": describe_error(error)}
    is_exact = max(gaps) <= TOLERANCES[torch.float64]
    return {"result": "exact" if is_exact else "wrong", "difference": max(gaps), "left": share}


def _build(name: str) -> tuple[nn.Module, Call, Call]:
    """Return a network in float64, its example inputs and others."""
    kind = _KINDS.get(name)
    if kind is None:
        entry = read_entries()[name]
        net, inputs = build(entry), draw_inputs(entry, seed=0)
        settle_(net, inputs)
        return net, inputs, draw_inputs(entry, seed=1)
    torch.manual_seed(0)
    net = kind.build().double().eval()
    randomise_(net, 0)
    return net, *(_as_call(in_double(kind.inputs())) for _ in range(2))


def _as_call(inputs: object) -> Call:
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def _learn(net: nn.Module, inputs: Call) -> tuple[nn.Module, list[torch.optim.Optimizer]]:
    """Return a gated copy that has learnt for some steps, and its optimisers."""
    arguments, options = inputs
    gated = al.add_gates(net, options or arguments)
    weights = torch.optim.AdamW(al.weights(gated), lr=RATE)
    try:
        gates = al.GateOptimizer(gated, STEPS, budget={"multiply_adds": SHARE})
    except al.InputError:  # less can go: half of that, then
        gates = al.GateOptimizer(gated, STEPS)
    gated.train(_trains(net, inputs))
    for _ in range(STEPS):
        _loss(gated, inputs).backward()
        for optimizer in (weights, gates):
            optimizer.step()
            optimizer.zero_grad()
    return gated.eval(), [weights, gates]


def _trains(net: nn.Module, inputs: Call) -> bool:
    """Return whether a model runs on so few inputs in training mode, too."""
    try:
        call(copy.deepcopy(net).train(), inputs)
    except Exception:
        return False
    return True


def _loss(net: nn.Module, inputs: Call) -> Tensor:
    arguments, options = copy.deepcopy(inputs)
    outputs = [x for x in leaves(net(*arguments, **options)) if x.requires_grad]
    reals = [x.abs() if x.is_complex() else x for x in outputs]
    return torch.stack([x.square().mean() + x.sin().mean() for x in reals]).sum()


def _cut(
    gated: nn.Module, optimizers: list[torch.optim.Optimizer], inputs: Call
) -> tuple[float, list[float]]:
    """Shrink and compact; return the share of multiply-adds left, and how far outputs are apart."""
    full = al.plan(gated).before.multiply_adds
    with exchanging({}):  # what a model in float64 casts to float32 stays in float64
        before = leaves(call(gated, inputs))
        al.shrink_(gated, *optimizers)
        shrunk = leaves(call(gated, inputs))
    small = al.compact(gated)
    with exchanging({}):
        after = leaves(call(small, inputs))
    pairs = [*zip(before, shrunk, strict=True), *zip(shrunk, after, strict=True)]
    left = al.count_costs(small).multiply_adds / max(1, full)
    return left, [difference(*pair) for pair in pairs]


def send_row(sender: Connection, name: str, device: str) -> None:
    """Measure one network; for a process of its own."""
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    sender.send(measure(name, device))
