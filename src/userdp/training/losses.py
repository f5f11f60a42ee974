"""The loss of a run: causal cross-entropy per row, in the precision that the run asks for."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from userdp.gradients import Loss, causal_lm_loss
from userdp.training.config import Precision, TrainConfig


def build_loss(config: TrainConfig, model: nn.Module) -> Loss:
    """`causal_lm_loss`, under autocast to bfloat16 if ``config`` asks for it.

    Sensitivity does not depend on it: a row's gradient stays a function of that row alone, and is
    clipped as computed, in float32 or wider.
    """
    if config.precision is Precision.FLOAT32:
        return causal_lm_loss
    device = next(model.parameters()).device.type

    def loss(
        model: nn.Module, input_ids: Tensor, lengths: Tensor, targets: Tensor | None = None
    ) -> Tensor:
        with torch.autocast(device, dtype=torch.bfloat16):
            return causal_lm_loss(model, input_ids, lengths, targets)

    return loss
