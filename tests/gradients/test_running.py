"""A running sum in float32 rounds by at most a tenth of the margin, whoever is drawn.

The oracle is exact: every unit's gradient is the same known vector below the clip norm, so the sum
of M of them is M times it, as a fraction. Equal addends are the worst: within a power of two every
addition rounds in the same direction.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from tests.gradients.batches import batched_sum
from tests.gradients.tiny import Table, ragged, table_loss, tiny
from userdp.gradients import ClippedSum, Units, causal_lm_loss
from userdp.gradients.clip_factors import squared_norm
from userdp.gradients.engines import rounding

MARGIN, WIDTH = 1e-3, 16
MOST = 38
"""Units, two to a pass, of the largest sum in float32: 2 x 19 x 21 <= 838 < 2 x 20 x 22."""


def worst_number(count: int) -> float:
    """The float32 number whose running sum of ``count`` is furthest off, of 4,000 tried.

    A pair of units is added as one number twice as large, which rounds alike.
    """
    tried = np.random.default_rng(1).uniform(1, 2, 4000).astype(np.float32)
    total = np.zeros_like(tried)
    for _ in range(count):
        total += tried
    return float(tried[np.argmax(np.abs(total - count * tried.astype(np.float64)) / tried)])


def aligned(count: int, number: float, **options: object) -> ClippedSum:
    """The sum of so many units whose gradients are all ``number``; their norm is 0.998 of C = 1."""
    scale = 2.0 ** -math.ceil(math.log2(number * math.sqrt(WIDTH) / 0.998))
    model = Table(torch.full((2, WIDTH), number * scale))
    clip = number * scale * math.sqrt(WIDTH) / 0.998
    units = Units.from_rows([[[0]]] * count)
    total = batched_sum(model, table_loss, units, l2_clip_norm=clip, micro_batch=2, **options)
    total.value = {name: value / clip for name, value in total.value.items()}
    assert total.norms.max() < clip * (1 - MARGIN)
    return total


def off(count: int, number: float, **options: object) -> float:
    """How far that sum is from the exact one, in units of C."""
    found = aligned(count, number, **options).value["weight"]
    unit = Fraction(0.998) / Fraction(math.sqrt(WIDTH))
    return float(max(abs(Fraction(x) - count * unit) for x in found.tolist())) * math.sqrt(WIDTH)


def test_invariant_3_aligned_units_at_the_largest_float32_sum_round_within_the_bound():
    number = worst_number(MOST // 2)
    rounded = off(MOST, number, parts=1)
    assert rounded <= MARGIN / 20
    assert rounded > 0.05 * MARGIN / 20  # it was float32, and the units are bad ones
    assert off(MOST, number) < 1e-13


def test_broken_twin_of_invariant_3_a_hundredfold_limit_is_caught(monkeypatch):
    monkeypatch.setattr(rounding, "_SHARE", 100 * rounding._SHARE)
    count = 406  # 2 x 203 x 205 <= 83,886
    assert off(count, worst_number(count // 2), parts=1) > MARGIN / 20


def test_invariant_3_one_unit_across_the_switch_moves_the_sum_by_its_own_norm():
    number = worst_number(MOST // 2)
    without, whole = (aligned(n, number, parts=1).value["weight"] for n in (MOST, MOST + 1))
    assert not torch.equal(without, aligned(MOST, number).value["weight"])  # float32
    assert torch.equal(whole, aligned(MOST + 1, number).value["weight"])  # float64
    move = float((whole - without).norm())
    assert abs(move - 0.998) <= MARGIN / 10
    assert move <= 1


@pytest.mark.parametrize("family", ["gpt2-tied", "llama"])
def test_invariant_3_models_with_tied_tables_round_within_the_bound(family: str) -> None:
    """The same passes' sums added in float64 are the oracle; all units say the same words."""
    model, units = tiny(family), Units.from_rows(ragged([1]) * 52)
    options = {"l2_clip_norm": 0.01, "micro_batch": 4}  # 52 x (13 + 2) <= 838
    narrow = batched_sum(model, causal_lm_loss, units, parts=1, **options)
    exact = batched_sum(model, causal_lm_loss, units, **options)
    apart = squared_norm(narrow.value[n] - exact.value[n] for n in exact.value) ** 0.5
    assert 0 < apart <= 0.01 * MARGIN / 20
    assert {value.dtype for value in narrow.value.values()} == {torch.float64}
