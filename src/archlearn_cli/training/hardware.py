"""The device, the number format and the processes of a run, by Lightning Fabric.

Under `torchrun` the number of processes and machines is what it says; else there is one process.
"""

import os
import platform
import warnings

import torch
from lightning_fabric import Fabric

import archlearn
from archlearn.errors import SettingsError
from archlearn_cli.training.settings import HardwareSettings


def start_fabric(settings: HardwareSettings) -> Fabric:
    """Return Fabric, launched: every process of the run passes here once."""
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    accelerator = choose_accelerator(settings.accelerator)
    if accelerator == "cuda":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.benchmark = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fabric = Fabric(
            accelerator=accelerator,
            devices=local,
            num_nodes=max(1, world // max(1, local)),
            strategy="ddp" if world > 1 else "auto",
            precision=settings.precision,
        )
        fabric.launch()
    return fabric


def choose_accelerator(asked: str) -> str:
    """Return the accelerator to use; `auto` is a GPU where there is one, else the CPU."""
    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if not torch.get_device_module(asked).is_available():
        raise SettingsError(
            f"accelerator {asked!r} was asked for, but torch finds none on this machine; "
            "use --accelerator cpu"
        )
    return asked


def describe_hardware(fabric: Fabric, precision: str) -> dict[str, object]:
    """Return what a run was computed on, for its summary."""
    on_cuda = fabric.device.type == "cuda"
    return {
        "device": fabric.device.type,
        "name": torch.cuda.get_device_name(fabric.device) if on_cuda else _name_of_cpu(),
        "processes": fabric.world_size,
        "threads": torch.get_num_threads(),
        "precision": precision,
    }


def describe_versions() -> dict[str, str]:
    """Return the versions that something was computed with."""
    versions = {"archlearn": archlearn.__version__, "torch": torch.__version__}
    return versions | {"python": platform.python_version()}


def _name_of_cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if "model name" in line]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
