"""Properties are tried on the same examples every time; the thorough profile tries more."""

import os

import torch
from hypothesis import HealthCheck, settings

common = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
settings.register_profile("default", common, max_examples=300)
settings.register_profile("thorough", common, max_examples=10_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
# Tiny tensors gain nothing from threads, and the workers of pytest share the cores.
torch.set_num_threads(1)
