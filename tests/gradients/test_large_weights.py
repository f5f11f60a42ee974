"""Weights at which float32 rounds a user's gradient by the width of its pass: shapes are fixed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import nn

from tests.gradients.campaign.measure import without
from tests.gradients.tiny import distance, length
from tests.speed import fast_then_slow
from userdp.gradients import Units, causal_lm_loss, get_engine
from userdp.gradients.engines import batched, passes
from userdp.gradients.engines.passes import PassShape
from userdp.training.causal_models import new_model
from userdp.training.config import TrainConfig

Case = tuple[int, float, int, int]
VOCABULARY = 64
CLIP = 0.7
CASES = ((128, 3e3, 25, 12), (64, 1e4, 25, 12), (128, 3e3, 9, 6), (128, 3e4, 25, 6))
"""Width of a model, how much its attention is scaled, units, most tokens of all but one of them."""


def moves(cases: tuple[Case, ...]) -> Iterator[tuple[float, float]]:
    """How far one unit moves the sum, and how far all others' part of it, over C.

    The engine is asked about a friendly cohort first, at the weights of before.
    """
    draw, sum_of = random.Random(2), get_engine("auto")
    for width, scale, units, most in cases:
        model = small_model(width)
        sum_of(model, causal_lm_loss, cohort(draw, 3, most), l2_clip_norm=CLIP)
        with torch.no_grad():
            for layer in model.transformer.h:
                layer.attn.c_attn.weight.mul_(scale)
        for _ in range(2):
            everybody = cohort(draw, units, most)
            parts = (everybody, without(everybody, 0), everybody.select(0, 1))
            total, others, own = (
                sum_of(model, causal_lm_loss, part, l2_clip_norm=CLIP).value for part in parts
            )
            left = {name: value - others[name] for name, value in total.items()}
            yield length(left) / CLIP, distance(left, own) / CLIP


def small_model(width: int) -> nn.Module:
    torch.manual_seed(0)
    config = TrainConfig(layers=4, width=width, heads=2)
    return new_model(config, vocab_size=VOCABULARY, seq_len=32).train()


def cohort(draw: random.Random, units: int, most: int) -> Units:
    """A long unit, and others that are padded to its length where it is there."""
    lengths = [32, *(draw.randint(2, most) for _ in range(units - 1))]
    return Units.from_rows([[[draw.randrange(VOCABULARY) for _ in range(n)]] for n in lengths])


@pytest.mark.parametrize("cases", fast_then_slow([[CASES[:1]], [CASES[1:]]]))
def test_invariant_3_weights_that_grow_do_not_let_one_unit_move_the_others(cases):
    for moved, of_others in moves(*cases):
        assert moved <= 1
        assert of_others < 1e-3  # the margin of the clip


@pytest.mark.slow
def test_invariant_3_twin_passes_as_wide_as_their_longest_row_are_caught(monkeypatch):
    """If passes were as wide as the cohort's longest row, and certified at that width."""
    honest = passes.units_by_shape

    def as_wide_as_the_longest(units: Units, *options: Any) -> dict[PassShape, list[int]]:
        longest = int(units.lengths.max())
        with patch.object(passes, "padded_width", lambda tokens: longest):
            return honest(units, *options)

    monkeypatch.setattr(batched, "units_by_shape", as_wide_as_the_longest)
    assert max(of_others for _, of_others in moves(CASES[:1])) > 0.02
