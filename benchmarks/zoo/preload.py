"""What most models need, imported once in the server that forks a process for each of them."""

import archlearn.surgery.compacting
import archlearn.surgery.planning
import benchmarks.zoo.measure
from benchmarks.torchvision_import import import_models

__all__ = ["archlearn", "benchmarks"]

import_models()
