"""Per-row losses: each row's number depends on that row's own tokens and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Loss: TypeAlias = Callable[[nn.Module, Tensor, Tensor], Tensor]
"""``loss(model, input_ids, lengths)`` → (rows,): one number per row, from that row alone.

``input_ids`` is (rows, width) and its contents beyond each row's length are arbitrary. The result
is attached to the model's graph even where it is 0. Normalise by nothing that other rows decide.
"""

_IGNORED = -100


def causal_lm_loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    r"""Mean next-token cross-entropy of each row over that row's own target tokens.

    .. math:: \ell_r = \frac{1}{n_r - 1} \sum_{t=1}^{n_r - 1} -\log p(x_{r,t} \mid x_{r,<t})

    Guarantee: row r's loss is a function of the model and of row r's first ``lengths[r]`` tokens.
    No denominator counts other rows' tokens or padding; positions arrive with shape
    (rows, length), so that no gradient is summed over rows inside the model; padding is masked,
    its loss is never formed into the sum (so a NaN there cannot spread).

    Args:
        model: a causal language model of Hugging Face's interface: takes ``input_ids``,
            ``attention_mask``, ``position_ids``, ``use_cache``; answers with ``.logits``.
        input_ids: int64, (rows, width); beyond a row's length, anything.
        lengths: int64, (rows,), in [0, width].

    Returns:
        (rows,) in nats, float32 (float64 for a float64 model). A row of fewer than two tokens has
        no target: its loss is 0 and its gradient zero.

    The last token is a target only, so it is never fed in: with causal attention that changes
    nothing but the cost.

    Source: the loss of one example in Charles et al. 2024, Section 2; Algorithms 1 and 2.
    """
    if input_ids.shape[1] < 2:
        input_ids = F.pad(input_ids, (0, 2 - input_ids.shape[1]))
    rows, width = input_ids.shape
    positions = torch.arange(width - 1, device=input_ids.device).expand(rows, width - 1)
    has_target = positions < (lengths - 1)[:, None]
    # The first position always attends to itself: a softmax over nothing would be NaN.
    attended = has_target | (positions == 0)
    inputs = torch.where(has_target, input_ids[:, :-1], 0)
    targets = torch.where(has_target, input_ids[:, 1:], _IGNORED)
    logits = model(
        input_ids=inputs,
        attention_mask=attended.long(),
        position_ids=positions,
        use_cache=False,
    ).logits
    if logits.dtype != torch.float64:
        logits = logits.float()
    per_token = F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=_IGNORED, reduction="none"
    )
    return per_token.view(rows, width - 1).sum(1) / (lengths - 1).clamp(min=1)
