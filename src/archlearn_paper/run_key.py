"""What was asked for is known by a digest: runs that were asked the same need not be made twice."""

import hashlib
import json
from typing import Any

from torch import nn

from archlearn.training.config import to_table
from archlearn_paper.experiment import Evaluation, Work
from archlearn_paper.parallel_runs import Run

_LENGTH = 16
# Settings that came after the first results: as these they change nothing, and do not count.
_ADDED_LATER = {"normalise": "data"}


def describe_work(work: Work) -> str:
    """Return a text that is the same for the same row, settings and network, and no others.

    What is done after an epoch counts by its `repr`. Where and how fast the arithmetic is done
    does not count.
    """
    settings = to_table(work.settings)
    settings.pop("hardware", None)
    settings.pop("record", None)
    for name, value in _ADDED_LATER.items():
        if settings.get(name) == value:
            del settings[name]
    asked: list[Any] = [work.row, settings]
    if isinstance(work, Run):
        asked += [repr(work.after_epoch), work.finish_compact]
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode())
    if work.network is not None:
        _add_network(digest, work.network)
    kind = "measured" if isinstance(work, Evaluation) else "trained"
    return f"{kind}-{digest.hexdigest()[:_LENGTH]}"


def _add_network(digest: "hashlib._Hash", network: nn.Module) -> None:
    for name, tensor in network.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
