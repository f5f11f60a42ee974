"""One unit's gradient by plain autograd: what the engines are held against.

It shares no code with them: no hooks, no rules, no clip. In evaluation mode, where there are no
masks. A sharded model's gradient is formed by its processes together, each of which ends with its
part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from userdp.gradients import Units
from userdp.gradients.losses import checked_losses
from userdp.gradients.shards import let_go, local

if TYPE_CHECKING:
    from userdp.training.checks.subject import Subject

Squares: TypeAlias = dict[str, float]
"""The squared norm of a gradient, by parameter, in float64; of all processes together."""


def gradient_of(subject: Subject, unit: Units) -> dict[str, Tensor]:
    """The mean over one unit's rows, each row clipped before if the plan asks for it; on the host.

    Args:
        subject: whose model is in evaluation mode.
        unit: one unit, the same on all processes.
    """
    input_ids, lengths, targets = unit.cut()
    rows, item = len(lengths), subject.clip.item_norm
    most = subject.micro_batch if item is None else 1
    mean: dict[str, Tensor] = {}
    for begin in range(0, rows, most):
        here = slice(begin, begin + most)
        width = int(lengths[here].max())
        marks = None if targets is None else targets[here, :width]
        part = _gradient(subject, input_ids[here, :width], lengths[here], marks)
        scale = 1 / rows
        if item is not None:
            norm = sum(subject.squared(part).values()) ** 0.5
            scale *= min(1.0, item / norm) if norm > 0 else 1.0
        for name, value in part.items():  # in place: large models have no room for another
            value.mul_(scale)
            mean[name] = value if begin == 0 else mean[name].add_(value)
    return mean


def squares_of(subject: Subject, unit: Units) -> Squares:
    """The squared norm of `gradient_of`, by parameter."""
    return subject.squared(gradient_of(subject, unit))


def _gradient(
    subject: Subject, input_ids: Tensor, lengths: Tensor, targets: Tensor | None
) -> dict[str, Tensor]:
    """Of the sum of the rows' losses."""
    names, parameters = zip(*subject.parameters.items(), strict=True)
    with let_go(subject.model), torch.enable_grad():
        losses = checked_losses(subject.loss, subject.model, input_ids, lengths, targets)
        if not subject.scattered:
            found = torch.autograd.grad(losses.sum(), parameters, allow_unused=True)
        else:
            # Every process adds the same rows, and FSDP adds the processes up in ``.grad``.
            torch.autograd.backward(losses.sum() / subject.world.size)
            found = tuple(parameter.grad for parameter in parameters)
            for parameter in parameters:
                parameter.grad = None
    return {
        name: torch.zeros(local(p).shape, dtype=wide)
        if gradient is None
        else local(gradient).to_dense().to("cpu", wide)
        for name, p, gradient in zip(names, parameters, found, strict=True)
        for wide in [torch.promote_types(p.dtype, torch.float32)]
    }
