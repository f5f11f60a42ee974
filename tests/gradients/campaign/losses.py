"""Losses of one number per row: those that keep rows apart, and those that do not."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from userdp.gradients import causal_lm_loss


def _places(
    input_ids: Tensor, lengths: Tensor, targets: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """What is fed in, which places predict, and what."""
    rows, width = input_ids.shape
    places = torch.arange(width - 1, device=input_ids.device).expand(rows, width - 1)
    real = places < (lengths - 1)[:, None]
    counted = real if targets is None else real & targets[:, 1:]
    return torch.where(real, input_ids[:, :-1], 0), counted, input_ids[:, 1:]


def on_selected(
    model: nn.Module, input_ids: Tensor, lengths: Tensor, targets: Tensor | None = None
) -> Tensor:
    """Each row's mean over its own targets, with a head that sees nothing else."""
    inputs, counted, labels = _places(input_ids, lengths, targets)
    losses = F.cross_entropy(model(inputs, counted), labels[counted], reduction="none")
    sums = losses.new_zeros(len(lengths)).index_add(0, counted.nonzero()[:, 0], losses)
    return sums / counted.sum(1).clamp(min=1)


def _per_token(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """(rows, places) losses, zero where nothing is predicted; and each row's count."""
    inputs, counted, labels = _places(input_ids, lengths, None)
    logits = model(inputs, lengths)
    losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    return losses.view(counted.shape) * counted, counted.sum(1)


def own_rows(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    """Each row's mean over its own targets."""
    losses, counts = _per_token(model, input_ids, lengths)
    return losses.sum(1) / counts.clamp(min=1)


# Those that do not.


def over_batch_tokens(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    counts = (lengths - 1).clamp(min=0)
    return causal_lm_loss(model, input_ids, lengths) * counts / counts.sum().clamp(min=1)


def over_rows(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    return own_rows(model, input_ids, lengths) / len(lengths)


def over_width(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    losses, _ = _per_token(model, input_ids, lengths)
    return losses.mean(1)


def over_mean_length(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    return own_rows(model, input_ids, lengths) / lengths.float().mean().item()


def gradient_over_batch(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    """The values are each row's own; the gradients are not."""
    losses = own_rows(model, input_ids, lengths)
    shared = losses.mean()
    return losses + shared - shared.detach()
