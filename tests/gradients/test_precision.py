"""Narrow precision is seen wherever it is entered."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.gradients.tiny import Small, distance, largest_move, length, row_squares, row_sums
from userdp.gradients import Loss, Units, clipped_sum
from userdp.gradients.engines import get_engine
from userdp.gradients.engines.engine import Task
from userdp.gradients.precision import dtypes_of

CLIP = 1e-3
NARROW = [torch.bfloat16, torch.float16]
WIDTH = 8


def model_in(kind: str, dtype: torch.dtype) -> Small:
    """Looks tokens up, turns them, adds up; ``kind`` says where it computes in fewer bits."""

    def answer(model: Any, tokens: Tensor, x: Tensor) -> Tensor:
        if kind == "a cast by hand":
            x = x.to(dtype).float()
        # A made-up row does not tell what is done only where some row begins with token 7.
        seven = kind == "sometimes" and bool((tokens[:, 0] == 7).any())
        with torch.autocast("cpu", dtype=dtype, enabled=seven or kind == "a submodule"):
            x = model.turn(x)
        if kind == "attention":  # products without parameters
            x = x.to(dtype)[:, None]
            # Causal, so that a row's padding, which others decide, is seen by nobody.
            x = F.scaled_dot_product_attention(x, x, x, is_causal=True)[:, 0]
        found: Tensor = model.out(x.float().tanh())
        return found

    linear = partial(nn.Linear, WIDTH, WIDTH)
    return Small(answer, vocabulary=11, width=WIDTH, seed=5, turn=linear, out=linear)


def loss_in(dtype: torch.dtype) -> Loss:
    def loss(model: nn.Module, tokens: Tensor, lengths: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=dtype):
            summed = (model(tokens) @ torch.ones(WIDTH, 1)).float()
        return row_squares(lambda tokens: summed, tokens, lengths)

    return loss


def some_units(count: int = 4, first: int = 0) -> Units:
    rows = [[[(first + 3 * u + t) % 6 for t in range(4 + u % 2)]] for u in range(count)]
    return Units.from_rows(rows)


KINDS = ["a submodule", "a cast by hand", "attention", "the loss"]


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("kind", KINDS)
def test_narrow_types_are_seen_wherever_they_are_entered(kind: str, dtype: torch.dtype) -> None:
    model = model_in(kind, dtype)
    loss = loss_in(dtype) if kind == "the loss" else row_squares
    engine = get_engine("auto")
    engine(model, loss, some_units(3), l2_clip_norm=CLIP)  # compared with the reference here
    one = engine(model, loss, some_units(1), l2_clip_norm=CLIP)
    assert float(one.norms) > CLIP
    assert length(one) == pytest.approx(CLIP * (1 - 1e-3), rel=1e-4)
    assert dtype in dtypes_of(model, loss, masked=False)


def test_full_precision_is_not_taken_for_narrow() -> None:
    model = model_in("", torch.float32)
    assert dtypes_of(model, row_squares, masked=False) == {torch.float32}
    assert Task(model=model, loss=row_squares, units=some_units(), l2_clip_norm=1.0).aim == 1 - 1e-3


def scaled_features() -> Small:
    """A fixed feature of each token, times one trained scale for each of many columns."""
    model = Small(
        lambda m, tokens, vectors: F.embedding(tokens, m.features) * m.scale,
        vocabulary=8,
        # As bfloat16 rounds them, the squares of these are 0.7% too small.
        features=lambda: torch.full((8, 8192), 1 + 15 / 4096),
        scale=lambda: nn.Parameter(torch.ones(8192)),
    )
    model.table.requires_grad_(False)
    return model


def test_invariant_3_norms_and_sums_have_all_bits_whatever_products_have() -> None:
    """As scripts ask for: products of float32 may have fewer bits, on processors that have such."""
    units, model = Units.from_rows([[[0, 1]], [[2, 3]]]), scaled_features()
    torch.set_float32_matmul_precision("medium")
    try:
        for clip in (0.5 + 0.07 * step for step in range(6)):
            both = get_engine("auto")(model, row_sums, units, l2_clip_norm=clip)
            assert length(both) <= 2 * clip
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("dtype", NARROW)
def test_a_pass_that_turns_narrow_is_computed_one_unit_at_a_time_at_the_same_aim(dtype):
    model, rows = model_in("sometimes", dtype), [[[1, 2, 3, 4]], [[7, 2, 3, 1]], [[5, 0, 3, 2]]]
    sum_of = partial(get_engine("auto"), model, row_squares, l2_clip_norm=CLIP)
    sum_of(some_units(3))
    units, aim = Units.from_rows(rows), CLIP * (1 - 1e-3)
    alone = clipped_sum(model, row_squares, units, l2_clip_norm=aim)
    assert distance(sum_of(units), alone) < 1e-12 * CLIP
    assert largest_move(sum_of, rows) <= CLIP
