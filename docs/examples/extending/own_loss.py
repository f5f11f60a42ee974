"""A loss of your own: next-token cross-entropy with label smoothing.

A loss gives one number a row, from that row alone. Its denominator is the row's own number of
target tokens: divided by the batch's, as most trainers do, one user's gradient would depend on the
length of the others' texts, and the clip would bound nothing. Before anything is charged userdp
asks the loss on made-up rows whether rows meet in it, and refuses it if so.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SMOOTHING = 0.1


def smoothed_loss(
    model: nn.Module, input_ids: Tensor, lengths: Tensor, targets: Tensor | None = None
) -> Tensor:
    """Mean over each row's targets of 0.9 times its cross-entropy and 0.1 of the uniform one.

    Args:
        model: answers with ``.logits``.
        input_ids: int64, (rows, width); beyond a row's length, anything.
        lengths: int64, (rows,).
        targets: bool, (rows, width), which tokens count; given for conversations.

    Returns:
        (rows,), in nats.
    """
    rows, width = input_ids.shape
    # Positions of shape (rows, width): broadcast ones would gather one gradient for all rows.
    places = torch.arange(width, device=input_ids.device).expand(rows, width)
    real = places < lengths[:, None]
    logits = model(input_ids=torch.where(real, input_ids, 0), position_ids=places).logits
    counted = real[:, 1:] if targets is None else real[:, 1:] & targets[:, 1:]
    words = torch.where(counted, input_ids[:, 1:], 0)
    each = F.cross_entropy(
        logits[:, :-1].transpose(1, 2), words, reduction="none", label_smoothing=SMOOTHING
    )
    return torch.where(counted, each, 0.0).sum(1) / counted.sum(1).clamp(min=1)
