"""What archlearn and Torch-Pruning each make of one model of the zoo."""

import copy
import re
import resource
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from math import isnan
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor, nn

import archlearn as al
from archlearn.gating.parameters import width_gates
from archlearn.verification.precision import exchanging
from benchmarks.torchvision_sides import drop_half_, n_parameters
from benchmarks.zoo.catalogue import Call, Entry, build, draw_inputs, dtype, read_entries, settle_

# Largest difference, as a share of the largest number of the output.
TOLERANCES = {torch.float64: 1e-10, torch.float32: 1e-3}
TRAINING_SEEDS = (0, 1, 2, 3)
_SAID = 1000
_HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "heads")
_QUERIES = ("qkv", "q", "query", "q_proj", "q_lin", "to_q")
_KEYS_AND_VALUES = (
    "k", "key", "k_proj", "k_lin", "to_k", "v", "value", "v_proj", "v_lin", "to_v",
)  # fmt: skip

Row = dict[str, Any]


def send_row(sender: Connection, name: str, side: str, memory: float, seconds: int) -> None:
    """Measure one model and side within GiB of memory and seconds; for a process of its own."""
    torch.set_num_threads(1)
    n_bytes = int(memory * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (n_bytes, n_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    sender.send(measure(name, read_entries()[name], side))


def measure(name: str, entry: Entry, side: str) -> Row:
    """Return one row of the table; an exception is a result, too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start = time.perf_counter()
        try:
            net, inputs = build(entry), draw_inputs(entry, seed=0)
            settle_(net, inputs)
            call(net, inputs)
        except Exception as error:
            row: Row = {"result": "the model itself fails", "said": describe_error(error)}
        else:
            row = SIDES[side](net, inputs, entry)
        return {"model": name, "side": side, **row, "seconds": time.perf_counter() - start}


def ours(net: nn.Module, inputs: Call, entry: Entry) -> Row:
    """Add gates, close half of every group, compact, and compare on new inputs."""
    try:
        return _compacted(net, inputs, entry)
    except al.ArchlearnError as error:
        return {"result": "refused", "said": describe_error(error)}
    except Exception as error:
        return {"result": "crashed", "said": describe_error(error)}


def _compacted(net: nn.Module, inputs: Call, entry: Entry) -> Row:
    arguments, options = inputs
    gated = al.add_gates(net, options or arguments, leaves=entry.get("leaves", ()))
    fresh = draw_inputs(entry, seed=1)
    expected_types = output_types(call(net, fresh))
    drop_half_(gated, seed=1)
    small = al.compact(gated)
    is_double = dtype(entry) is torch.float64
    # What a model in float64 casts to float32 stays in float64.
    with exchanging({}) if is_double else nullcontext():
        expected, found = call(gated, fresh), call(small, fresh)
    differences = [difference(*pair) for pair in zip(leaves(expected), leaves(found), strict=True)]
    worst = max(differences, default=float("nan"))
    groups = width_gates(gated)
    return {
        "result": "exact" if worst <= TOLERANCES[dtype(entry)] else "wrong",
        "difference": worst,
        "left": n_parameters(small) / n_parameters(net),
        "types_kept": output_types(expected) == expected_types == output_types(found),
        "groups": len(groups),
        "depths": len(al.depth_gates(gated)),
        "branches": len(al.branch_gates(gated)),
        "silent_in_training": silent_groups(gated, inputs),
        "depends_on_input": any(
            not torch.equal(*pair)
            for pair in zip(leaves(call(gated, inputs)), leaves(expected), strict=False)
        ),
    }


def torch_pruning(net: nn.Module, inputs: Call, entry: Entry) -> Row:
    """Prune at a ratio of one half by Torch-Pruning's plain call; the output is left alone."""
    return _pruned(net, inputs, entry, {})


def torch_pruning_heads(net: nn.Module, inputs: Call, entry: Entry) -> Row:
    """The same with `num_heads`, where attention with heads is found."""
    heads = find_heads(net)
    return _pruned(net, inputs, entry, heads) if heads else {"result": "no heads"}


def _pruned(net: nn.Module, inputs: Call, entry: Entry, heads: dict[nn.Module, int]) -> Row:
    import torch_pruning as tp

    arguments, options = inputs
    before = n_parameters(net)
    try:
        pruner = tp.pruner.MagnitudePruner(
            net,
            options or arguments,
            importance=tp.importance.MagnitudeImportance(p=2),
            pruning_ratio=0.5,
            ignored_layers=output_layers(net, inputs),
            num_heads=heads,
        )
        pruner.step()
        set_head_sizes_(net, heads)
        call(net, draw_inputs(entry, seed=1))
    except Exception as error:
        return {"result": "fails", "said": describe_error(error)}
    return {"result": "runs", "left": n_parameters(net) / before}


def find_heads(net: nn.Module) -> dict[nn.Module, int]:
    """Return the layers that write queries, keys and values, with their numbers of heads."""
    found: dict[nn.Module, int] = {}
    for module in net.modules():
        homes = (module, getattr(module, "config", None))
        counts = [getattr(home, name, None) for home in homes for name in _HEAD_COUNTS]
        n_heads = next((n for n in counts if isinstance(n, int) and n > 1), None)
        if n_heads is None:
            continue
        if isinstance(module, nn.MultiheadAttention):
            found[module] = n_heads
        of_keys = getattr(getattr(module, "config", None), "num_key_value_heads", None) or n_heads
        for name, layer in module.named_children():
            if isinstance(layer, nn.Linear) and name in _QUERIES + _KEYS_AND_VALUES:
                found[layer] = n_heads if name in _QUERIES else of_keys
    return found


def set_head_sizes_(net: nn.Module, heads: dict[nn.Module, int]) -> None:
    """Tell attention modules how large their heads are now, as Torch-Pruning's examples do."""
    for module in net.modules():
        for name, layer in module.named_children():
            if layer in heads and isinstance(layer, nn.Linear) and name in _QUERIES:
                width = layer.out_features // (3 if name == "qkv" else 1)
                sizes = dict.fromkeys(("head_dim", "attention_head_size"), width // heads[layer])
                sizes |= dict.fromkeys(("all_head_size", "inner_dim", "attn_dim"), width)
                for attribute, size in sizes.items():
                    if isinstance(getattr(module, attribute, None), int):
                        setattr(module, attribute, size)


SIDES: dict[str, Callable[[nn.Module, Call, Entry], Row]] = {
    "archlearn": ours,
    "torch-pruning": torch_pruning,
    "torch-pruning heads": torch_pruning_heads,
}


def output_layers(net: nn.Module, inputs: Call) -> list[nn.Module]:
    """Return the layers whose weights are the last on a way to an output."""
    arguments, options = copy.deepcopy(inputs)
    waiting = [leaf.grad_fn for leaf in leaves(net(*arguments, **options))]
    found: set[Tensor] = set()
    for node in waiting:
        inner = [before for before, _ in node.next_functions] if node is not None else []
        # a linear layer's weight is read through a transposition
        reads = [b.next_functions[0][0] if b and b.name() == "TBackward0" else b for b in inner]
        matrices = {b.variable for b in reads if hasattr(b, "variable") and b.variable.dim() > 1}
        found |= matrices
        if not matrices:
            waiting += [before for before in inner if before not in waiting]
    return [m for m in net.modules() if found & set(m.parameters(recurse=False))]


@torch.no_grad()
def call(net: nn.Module, inputs: Call) -> Any:
    """Return what the model gives; what it draws is drawn alike each time."""
    arguments, options = copy.deepcopy(inputs)
    torch.manual_seed(99)
    return net(*arguments, **options)


def silent_groups(gated: nn.Module, inputs: Call) -> list[str] | str:
    """Return the groups of gates that get a gradient in evaluation mode and none in training."""
    if not width_gates(gated):
        return []
    try:
        with torch.no_grad():  # a unit that is dead by chance would be silent, too
            for gate in width_gates(gated).values():
                gate.fill_(0.9)
        heard = _heard_groups(gated.eval(), inputs, seed=0)
        for seed in TRAINING_SEEDS:  # a block may be skipped at random
            heard -= _heard_groups(gated.train(), inputs, seed) if heard else set()
        return sorted(heard)
    except Exception as error:
        return describe_error(error)
    finally:
        gated.eval()


def _heard_groups(gated: nn.Module, inputs: Call, seed: int) -> set[str]:
    """Return the groups of gates on which a loss on all outputs depends."""
    groups = width_gates(gated)
    arguments, options = copy.deepcopy(inputs)
    torch.manual_seed(seed)
    outputs = [leaf for leaf in leaves(gated(*arguments, **options)) if leaf.requires_grad]
    losses = [(leaf * torch.rand_like(leaf)).sum() for leaf in outputs]
    gates = list(groups.values())
    grads = torch.autograd.grad(losses, gates, allow_unused=True)
    pairs = zip(groups, grads, strict=True)
    return {name for name, grad in pairs if grad is not None and bool(grad.any())}


def leaves(output: Any) -> list[Tensor]:
    """Return the tensors of an output, in order, inside whatever it is."""
    return list(_leaves(output))


def _leaves(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, dict):
        for value in output.values():
            yield from _leaves(value)
    elif isinstance(output, list | tuple):
        for value in output:
            yield from _leaves(value)
    elif hasattr(output, "__dict__"):
        yield from _leaves(vars(output))


def output_types(output: Any) -> Any:
    """Return the types of an output and of all that it holds, but for caches: none is kept."""
    if isinstance(output, dict):
        parts = {key: value for key, value in output.items() if "Cache" not in type(value).__name__}
        return type(output), {key: output_types(value) for key, value in parts.items()}
    if isinstance(output, list | tuple):
        return type(output), [output_types(value) for value in output]
    return type(output)


def difference(first: Tensor, second: Tensor) -> float:
    """Return the largest difference, as a share of the largest number."""
    if first.shape != second.shape:
        return float("inf")
    if not first.is_floating_point() or first.numel() == 0:
        return 0.0 if torch.equal(first, second) else float("inf")
    if torch.equal(first, second):
        return 0.0
    found = float((first - second).abs().max() / first.abs().max().clamp_min(1e-300))
    return float("inf") if isnan(found) else found


def describe_error(error: Exception) -> str:
    """Return the kind of an error and its message on one line, without paths of packages."""
    text = re.sub(r"\S*/site-packages/", "", " ".join(str(error).split()))
    return f"{type(error).__name__}: {text}"[:_SAID]
