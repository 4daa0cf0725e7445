"""Learning from a teacher: the loss by hand, and a network that learns from nothing else."""

import torch
from torch import nn

import archlearn as al


def test_it_is_the_divergence_of_softened_scores_times_the_square_of_the_temperature() -> None:
    torch.manual_seed(0)
    mine, theirs = torch.randn(2, 6, 5, dtype=torch.float64).unbind()
    p, q = ((scores / 3).softmax(-1) for scores in (theirs, mine))
    by_hand = 9 * (p * (p / q).log()).sum(-1).mean()
    torch.testing.assert_close(al.distill(mine, theirs, temperature=3), by_hand)


def test_tokens_count_as_examples_and_half_precision_is_raised() -> None:
    torch.manual_seed(0)
    mine, theirs = torch.randn(2, 4, 7, 5).unbind()
    flat = al.distill(mine.reshape(28, 5), theirs.reshape(28, 5))
    torch.testing.assert_close(al.distill(mine, theirs), flat)
    low = al.distill(mine.bfloat16(), theirs.bfloat16())
    assert low.dtype == torch.float32


def test_no_gradient_goes_to_the_teacher() -> None:
    mine, theirs = torch.randn(2, 6, 5).unbind()
    mine.requires_grad_()
    theirs.requires_grad_()
    al.distill(mine, theirs).backward()
    assert theirs.grad is None
    assert mine.grad is not None
    assert mine.grad.abs().sum() > 0


def test_a_gated_network_learns_its_teacher_without_labels() -> None:
    torch.manual_seed(0)
    teacher = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 4)).eval()
    x = torch.randn(256, 8)

    def learnt(n_steps: int) -> nn.Module:
        model = al.add_gates(teacher, x[:2])
        optimizer = torch.optim.Adam(al.weights(model), lr=1e-2)
        gates = al.GateOptimizer(model, total_steps=n_steps, budget={"parameters": "60%"})
        for _ in range(n_steps):
            al.distill(model(x), teacher(x)).backward()
            optimizers: tuple[torch.optim.Optimizer, ...] = (optimizer, gates)
            for each in optimizers:
                each.step()
                each.zero_grad()
        gates.finish()
        return al.compact(model)

    cut, small = (al.distill(learnt(n)(x), teacher(x)).item() for n in (1, 200))
    assert small < cut / 10
