"""Adam and the learning-rate schedule of section 5.3 of "Attention Is All You Need"."""

import torch
from torch import nn

from nmt_cli.recipe.schema import Training


def noam_rate(step: int, d_model: int, training: Training) -> float:
    """Return the learning rate of `step` (from 1) by equation 3, times `rate_factor`.

    In the last `cooldown_steps` steps, multiply this rate by a factor that falls linearly toward zero.
    """
    rate: float = training.rate_factor * d_model**-0.5 * min(step**-0.5, step * training.warmup_steps**-1.5)
    remaining = training.steps - step + 1  # including this step
    return rate * min(1.0, remaining / (training.cooldown_steps + 1)) if training.cooldown_steps else rate


def adam(model: nn.Module, training: Training) -> torch.optim.Adam:
    """Return Adam with the recipe's betas and epsilon. The caller sets the learning rate before each step."""
    betas = (training.adam_beta1, training.adam_beta2)
    return torch.optim.Adam(model.parameters(), lr=0.0, betas=betas, eps=training.adam_epsilon, fused=True)
