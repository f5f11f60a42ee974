"""Loss masks: a row's loss is the mean over its own marked tokens, in every engine."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.gradients.tiny import distance, ragged, tiny
from tests.speed import fast_then_slow
from userdp.gradients import (
    ENGINES,
    Units,
    causal_lm_loss,
    clipped_sum,
    get_engine,
    trainable_parameters,
)
from userdp.gradients.clipping import squared_norm

Rows = list[list[list[int]]]


def masked(rows: Rows, *, seed: int = 0, part: float = 0.5) -> Units:
    """Units whose tokens are marked at random; some rows have no mark at all."""
    draw = random.Random(seed)
    flat = [row for unit in rows for row in unit]
    marks = [[draw.random() < part for _ in row] for row in flat]
    if marks:
        marks[-1] = [False] * len(marks[-1])
    return Units.from_flat(
        np.array([t for row in flat for t in row], dtype=np.int64),
        np.cumsum([0, *map(len, flat)]),
        np.cumsum([0, *map(len, rows)]),
        np.array([m for row in marks for m in row], dtype=np.bool_),
    )


def by_hand(model: nn.Module, row: Tensor, marks: Tensor) -> Tensor:
    """Mean of -log p(token | the tokens before it) over marked tokens, the row alone."""
    logits = model(input_ids=row[None]).logits[0]
    surprises = [
        -torch.log_softmax(logits[t - 1], -1)[row[t]] for t in range(1, len(row)) if marks[t]
    ]
    return torch.stack(surprises).mean() if surprises else logits.sum() * 0


@pytest.mark.parametrize("family", ["gpt2-tied", "llama"])
def test_each_row_loses_the_mean_surprise_of_its_marked_tokens(family: str) -> None:
    model = tiny(family, torch.float64)
    units = masked(ragged([3, 1, 2]))
    assert units.targets is not None
    losses = causal_lm_loss(model, units.input_ids, units.lengths, units.targets)
    expected = [
        by_hand(model, row[:n], marks[:n])
        for row, marks, n in zip(
            units.input_ids, units.targets, units.lengths.tolist(), strict=True
        )
    ]
    torch.testing.assert_close(losses, torch.stack(expected), rtol=1e-12, atol=1e-12)
    assert losses[-1] == 0


@pytest.mark.parametrize("item_clip_norm", fast_then_slow([None, 0.4]))
@pytest.mark.parametrize("engine", list(ENGINES))
def test_every_engine_gives_the_reference_sum_with_masks(engine, item_clip_norm):
    model = tiny("gpt2-tied", torch.float64)
    units = masked(ragged([3, 1, 4, 2], seed=3))
    options = {"item_clip_norm": item_clip_norm, "micro_batch": 6}
    exact = clipped_sum(model, causal_lm_loss, units, l2_clip_norm=0.5, **options)
    found = get_engine(engine)(model, causal_lm_loss, units, l2_clip_norm=0.5, **options)
    torch.testing.assert_close(found.norms, exact.norms, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(found.losses, exact.losses, rtol=1e-7, atol=1e-9)
    assert distance(found, exact) <= 1e-4  # four contributions of 0.5, each aimed 1e-5 lower


@pytest.mark.parametrize("engine", list(ENGINES))
def test_invariant_3_marks_of_one_unit_move_the_sum_by_its_own_part_alone(engine: str) -> None:
    """A unit leaves, and what is left is the others' sum: nobody is normalised by its marks."""
    model = tiny("gpt2-tied", torch.float64)
    rows = ragged([2, 3, 2], seed=4)
    clip = 1e4  # never bites, so that any coupling would show
    whole = masked(rows, seed=5)
    engine_ = get_engine(engine)
    everybody = engine_(model, causal_lm_loss, whole, l2_clip_norm=clip)
    alone = [
        engine_(model, causal_lm_loss, whole.select(k, k + 1), l2_clip_norm=clip) for k in range(3)
    ]
    for name, value in everybody.value.items():
        parts = torch.stack([one.value[name] for one in alone]).sum(0)
        torch.testing.assert_close(value, parts, rtol=1e-6, atol=1e-9)


def test_invariant_3_twin_a_loss_over_the_targets_of_the_batch_is_caught() -> None:
    """Normalised by everybody's targets, one user's marks scale the others' gradients."""
    model = tiny("gpt2-tied", torch.float64)
    rows = ragged([1] * 9, seed=6, shortest=9, longest=9)
    marks = torch.zeros(9, 9, dtype=torch.bool)
    marks[:, 1] = True  # one target each, but the first has eight
    marks[0, 1:] = True
    units = Units.from_rows(rows)
    clip = 2.0

    def total(keep: slice, *, batch_wise: bool) -> dict[str, Tensor]:
        ids, lengths, counted = units.input_ids[keep], units.lengths[keep], marks[keep]
        parameters = trainable_parameters(model)
        sums = {name: torch.zeros_like(p) for name, p in parameters.items()}
        own = counted[:, 1:].sum(1)
        losses = causal_lm_loss(model, ids, lengths, counted)
        for loss in losses * own / own.sum() if batch_wise else losses:
            gradient = torch.autograd.grad(loss, list(parameters.values()), retain_graph=True)
            factor = min(1.0, clip / math.sqrt(squared_norm(gradient)))
            for into, part in zip(sums.values(), gradient, strict=True):
                into.add_(part, alpha=factor)
        return sums

    def move(*, batch_wise: bool) -> float:
        return distance(*(total(slice(n, None), batch_wise=batch_wise) for n in (0, 1)))

    assert move(batch_wise=False) <= clip * (1 + 1e-9)
    assert move(batch_wise=True) > 1.2 * clip
