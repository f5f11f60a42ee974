"""Passes that users share without their fallback, and torch's own per-unit gradients as oracle."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from userdp.gradients import ClippedSum, Loss, Units, losses, trainable_parameters
from userdp.gradients.engines import Engine, batched
from userdp.gradients.engines.choice import why_alone
from userdp.gradients.engines.passes import Pass, PassShape
from userdp.gradients.engines.task import Task
from userdp.gradients.engines.uses import Forms
from userdp.gradients.model_randomness import secret_randomness


def reason_alone(model: nn.Module, loss: Loss, units: Units, **options: Any) -> str | None:
    """Why `auto` computes each of these units by itself; None where they share passes."""
    task = Task(model=model, loss=loss, units=units, **{"l2_clip_norm": 1.0, **options})
    with secret_randomness():
        return why_alone(task)


def batched_sum(
    model: nn.Module,
    loss: Loss,
    units: Units,
    *,
    form: Forms = None,
    strict: bool = True,
    **options: Any,
) -> ClippedSum:
    """The batched engine, which is not asked here whether it agrees with the reference.

    ``strict``: a shape of passes without a certificate is an error.
    """
    return Engine(partial(batched.sum_of_passes, form=form, strict=strict))(
        model, loss, units, **options
    )


class _Called(nn.Module):
    """A model whose forward pass is a loss, so that its parameters can be exchanged."""

    def __init__(self, model: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, input_ids: Tensor, lengths: Tensor) -> Tensor:
        return self.loss(self.model, input_ids, lengths).mean()


def _torchs_losses(logits: Tensor, labels: Tensor) -> Tensor:
    flat = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction="none")
    return flat.view(labels.shape)


def vmap_norms(model: nn.Module, loss: Loss, units: Units) -> Tensor:
    """Norms of the units' gradients by torch.func, float64; all units have as many rows."""
    called, count = _Called(model, loss), len(units)
    held = {f"model.{name}": p.detach() for name, p in trainable_parameters(model).items()}

    def of_one(parameters: dict[str, Tensor], ids: Tensor, lengths: Tensor) -> Tensor:
        found: Tensor = functional_call(called, parameters, (ids, lengths))
        return found

    ids = units.input_ids.view(count, -1, units.input_ids.shape[1])
    with patch.object(losses, "token_losses", _torchs_losses):  # ``vmap`` traces torch's own
        gradients = vmap(grad(of_one), (None, 0, 0))(held, ids, units.lengths.view(count, -1))
    squares = [g.double().flatten(1).square().sum(1) for g in gradients.values()]
    return torch.stack(squares).sum(0).sqrt()


honest_of = Pass.of


def as_they_come(self: Pass, units: Units) -> Units:
    """A broken twin: as many places as units, and a pass as wide as its longest row."""
    tight = PassShape(len(self.numbers), self.shape.rows, self.shape.width)
    parts = [
        honest_of(Pass((number,), (0,), PassShape(1, tight.rows, tight.width)), units)
        for number in self.numbers
    ]
    longest = max(int(part.lengths.max()) for part in parts)
    return Units(
        input_ids=torch.cat([part.input_ids for part in parts])[:, :longest],
        lengths=torch.cat([part.lengths for part in parts]),
        offsets=torch.arange(tight.units + 1) * tight.rows,
    )
