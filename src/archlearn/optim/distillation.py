"""Learning from a teacher: a frozen network whose outputs are matched beside the labels."""

import torch
import torch.nn.functional as F
from torch import Tensor

from archlearn.errors import LARGEST, InputError, check_kind, lies_in


def distill(outputs: Tensor, teacher_outputs: Tensor, *, temperature: float = 4.0) -> Tensor:
    """Return how far class scores are from a teacher's (Hinton et al. 2015).

    The Kullback-Leibler divergence of both softened distributions, times the square of the
    temperature so that its gradient is as large as that of a cross-entropy, as the mean over all
    examples (and tokens). Add it to the task's loss:

        loss = 0.1 * cross_entropy(model(x), y) + 0.9 * al.distill(model(x), teacher(x))

    Args:
        outputs: Scores of the network that learns, classes last.
        teacher_outputs: Scores of the teacher for the same inputs; no gradient goes there.
        temperature: What scores are divided by; the higher, the more the small ones count.
    """
    if not lies_in(temperature, 0, LARGEST) or temperature == 0:
        raise InputError(f"temperature is {temperature!r}; give a number above 0")
    for name, scores in (("outputs", outputs), ("teacher_outputs", teacher_outputs)):
        check_kind(name, scores, Tensor, "give the scores, such as model(x) or model(**x).logits")
    mine, theirs = (
        F.log_softmax(at_least_single(scores) / temperature, -1).reshape(-1, scores.shape[-1])
        for scores in (outputs, teacher_outputs.detach())
    )
    if mine.shape != theirs.shape:
        raise InputError(
            f"outputs have the shape {tuple(outputs.shape)}, but teacher_outputs "
            f"{tuple(teacher_outputs.shape)}; give both networks the same inputs and classes"
        )
    divergence = F.kl_div(mine, theirs, reduction="batchmean", log_target=True)
    return divergence * temperature**2


def at_least_single(scores: Tensor) -> Tensor:
    """Return scores in float32, or in float64 where that is what they are in."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))
