"""A cohort of tiny users, one of each kind that a guarantee about one user might forget."""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn

from userdp.gradients import Units, causal_lm_loss

LARGE, ENORMOUS, INFINITE = 58, 59, 60
"""Tokens whose repetition marks a row whose loss is multiplied: no made-up row has so many."""

_FACTORS = {LARGE: 1e6, ENORMOUS: 1e25, INFINITE: torch.inf}
"""The second is more than the square root of what float32 holds."""

MARKS, WIDTH, MICRO_BATCH = 6, 33, 8

OUT = (0, 3, 5, 9, 10, 11, 12, 13, 14)
"""Who is left out, one at a time: one of each kind that counts for something, and an empty one."""


def cohort() -> Units:
    """Ragged, empty, extreme and adversarial users. Each row's first token is its own."""
    draw, first = random.Random(3), iter(range(1, LARGE))

    def row(length: int) -> list[int]:
        return [next(first), *(draw.randrange(1, LARGE) for _ in range(length - 1))]

    ordinary = row(9)
    users = [
        [ordinary],
        [row(6)],
        [row(7), row(3)],
        [row(8), row(5), row(2)],
        [row(4), row(9)],
        [],  # drawn, and without text
        [[]],
        [[7]],  # nothing predicts a row's first token
        [[next(first), *ordinary[1:]]],  # says what another says
        [[next(first), *[ordinary[1]] * 19]],  # a Gram matrix of rank one
        [row(WIDTH)],
        [row(4) for _ in range(MICRO_BATCH + 2)],
        [[next(first), *[LARGE] * MARKS, 5]],
        [[next(first), *[ENORMOUS] * MARKS, 5]],
        [[next(first), *[INFINITE] * MARKS, 5]],
    ]
    return Units.from_rows(users, width=WIDTH)


def judged(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    """`causal_lm_loss`, times the factors of marked rows."""
    losses = causal_lm_loss(model, input_ids, lengths)
    at = torch.arange(input_ids.shape[1], device=lengths.device)
    held = torch.where(at < lengths[:, None], input_ids, 0)
    for token, factor in _FACTORS.items():
        losses = losses * torch.where((held == token).sum(1) >= MARKS, factor, 1.0)
    return losses


def judged_in_bfloat16(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
    """The same under autocast."""
    with torch.autocast(lengths.device.type, dtype=torch.bfloat16):
        return judged(model, input_ids, lengths)
