"""Optimizers over the parameters that train: torch's own, and `AdamBC`."""

from __future__ import annotations

import torch
from torch import nn

from userdp.gradients import trainable_parameters
from userdp.training.adam_bc import AdamBC
from userdp.training.config import OptimizerName, TrainConfig


def build_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """The optimizer over exactly the model's trainable parameters.

    Matrices decay, biases and norms do not: two groups, as is usual for language models.
    """
    parameters = list(trainable_parameters(model).values())
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    match config.optimizer:
        case OptimizerName.ADAMW:
            return torch.optim.AdamW(
                groups, lr=config.learning_rate, betas=(0.9, 0.98), fused=_can_fuse(parameters)
            )
        case OptimizerName.ADAM_BC:
            return AdamBC(
                groups,
                lr=config.learning_rate,
                betas=(0.9, 0.98),
                floor=config.bias_correction_floor,
            )
        case OptimizerName.ADAFACTOR:
            return torch.optim.Adafactor(groups, lr=config.learning_rate)
        case OptimizerName.SGD:
            return torch.optim.SGD(groups, lr=config.learning_rate, momentum=0.9)


def _can_fuse(parameters: list[nn.Parameter]) -> bool:
    """Whether torch has one kernel for the whole update: on a CPU a quarter of the time."""
    return all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters)


def set_noise_std(optimizer: torch.optim.Optimizer, noise_std: float) -> None:
    """Tell an optimizer that corrects for it how much noise is in ``.grad``; a public number."""
    for group in optimizer.param_groups:
        if "noise_std" in group:
            group["noise_std"] = noise_std


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use ``rate`` in every group."""
    for group in optimizer.param_groups:
        group["lr"] = rate
