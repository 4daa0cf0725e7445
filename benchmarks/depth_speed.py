"""How fast compact networks are beside the original, on the CPU and on a GPU, and what went.

    python -m benchmarks.depth_speed resnet56 RUN_FOLDER... --page results/depth-speed.md

A run folder is one of `python -m benchmarks.learning depth`. Times are medians of repeated forward
passes, one after the other for each network in turn, so that all meet the same conditions. On a GPU
each network is also captured as a CUDA graph: called one by one, these small kernels take the host
longer to start than the GPU to run.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

import archlearn as al
from archlearn_cli.models.model_registry import build_network
from benchmarks.circumstances import as_markdown, describe

BATCHES = (1, 256)
ROUNDS, PASSES = 15, 3


def time_networks(
    networks: Mapping[str, Callable[[Tensor], object]], x: Tensor
) -> dict[str, float]:
    """Return the median seconds of a forward pass of each network."""
    found: dict[str, list[float]] = {name: [] for name in networks}
    with torch.inference_mode():
        for number in range(ROUNDS + 2):
            for name, network in networks.items():
                _wait(x)
                start = time.perf_counter()
                for _ in range(PASSES):
                    network(x)
                _wait(x)
                if number >= 2:  # the first rounds warm up
                    found[name].append((time.perf_counter() - start) / PASSES)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


@torch.inference_mode()
def capture(network: nn.Module, x: Tensor) -> Callable[[Tensor], object]:
    """Return a call that replays a network's forward pass on `x`, captured as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            network(x)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        network(x)
    return lambda _: graph.replay()


def _wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize(x.device)


def measure(model: str, folders: list[Path]) -> list[str]:
    """Return a table: blocks and costs left, and times beside the original's."""
    networks = {"original": build_network(model, (3, 32, 32), 10).eval()}
    for folder in folders:
        networks[folder.name] = al.load(folder / "compact.safetensors").eval()
    modes = ["cpu", "cuda", "cuda graph"] if torch.cuda.is_available() else ["cpu"]
    cells = {
        name: [str(count_blocks(network)), *_costs(network)] for name, network in networks.items()
    }
    head = ["network", "blocks", "parameters", "multiply-adds"]
    for mode in modes:
        device = mode.split()[0]
        for batch in BATCHES:
            x = torch.randn(batch, 3, 32, 32, device=device)
            placed = {name: network.to(device) for name, network in networks.items()}
            calls: dict[str, Callable[[Tensor], object]] = {**placed}
            if mode == "cuda graph":
                calls = {name: capture(network, x) for name, network in placed.items()}
            times = time_networks(calls, x)
            head.append(f"{mode}, batch {batch}")
            for name, seconds in times.items():
                gain = times["original"] / seconds
                cells[name].append(f"{1000 * seconds:.2f} ms ({gain:.2f}x)")
    rows = [head, ["---"] * len(head), *([name, *row] for name, row in cells.items())]
    return [f"| {' | '.join(row)} |" for row in rows]


def count_blocks(network: nn.Module) -> int:
    """Return how many residual blocks still have a convolution."""
    names = [name for name, _ in network.named_parameters() if ".conv" in name and "layer" in name]
    return len({name.split(".conv")[0] for name in names})


def _costs(network: nn.Module) -> list[str]:
    costs = al.count_costs(network.cpu(), torch.randn(1, 3, 32, 32))
    return [f"{costs.parameters:,}", f"{costs.multiply_adds:,}"]


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--page", type=Path)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    table = measure(given.model, given.folders)
    name = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    said = f"{given.threads} CPU threads, {name}; torch {torch.__version__}."
    tests = [
        f"{folder.name}: test accuracy "
        f"{100 * json.loads((folder / 'summary.json').read_text())['test_accuracy']:.2f} %."
        for folder in given.folders
    ]
    lines = ["# Depth that pays", "", f"Made by {as_markdown(describe())}", said, ""]
    lines += [*table, "", *tests]
    print("\n".join(lines))
    if given.page is not None:
        given.page.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
