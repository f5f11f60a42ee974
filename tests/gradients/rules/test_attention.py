"""`nn.MultiheadAttention` in passes that users share: the reference's norms and sums."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.gradients.batches import batched_sum
from tests.gradients.counted import counted_reference
from tests.gradients.tiny import largest_move, own_tokens, ragged
from userdp.gradients import Units, clipped_sum, get_engine
from userdp.gradients.engines.uses import Form

VOCABULARY, WIDTH = 19, 8
UNITS = Units.from_rows([[[1, 2, 3, 4], [5, 6]], [[7, 8, 9]], [[3, 3, 3, 3, 3], [2, 1]]])


def above(length: int) -> Tensor:
    return torch.ones(length, length).triu(1).bool()


def added(length: int) -> Tensor:
    return torch.zeros(length, length).masked_fill(above(length), -torch.inf)


class Attends(nn.Module):
    def __init__(self, options: dict[str, Any], **how: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.options, self.how = options, how
        self.table = nn.Embedding(VOCABULARY, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, **options)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.table(input_ids)
        x = x if self.options.get("batch_first") else x.transpose(0, 1)
        how = dict(self.how)
        if "attn_mask" in how:
            how["attn_mask"] = how["attn_mask"](input_ids.shape[1])
        y, weights = self.attention(x, x, x, **how)
        if weights is not None:
            y = y + weights[:, :, :1]
        found: Tensor = self.head(y if self.options.get("batch_first") else y.transpose(0, 1))
        return found


FIRST = {"batch_first": True}
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a mask of truths": (FIRST, {"attn_mask": above, "need_weights": False}),
    "a mask that is added": (FIRST, {"attn_mask": added, "need_weights": False}),
    "by hint": (FIRST, {"attn_mask": added, "need_weights": False, "is_causal": True}),
    "without biases": (FIRST | {"bias": False}, {"attn_mask": above, "need_weights": False}),
    "positions first": ({}, {"attn_mask": above, "need_weights": False}),
    "with weights": (FIRST, {"attn_mask": above}),
}


@pytest.mark.parametrize("form", Form)
@pytest.mark.parametrize("way", WAYS)
def test_norms_and_sums_are_the_references(way: str, form: Form) -> None:
    model = Attends(WAYS[way][0], **WAYS[way][1])
    ours = batched_sum(model, own_tokens, UNITS, l2_clip_norm=0.5, form=form)
    exact = clipped_sum(model, own_tokens, UNITS, l2_clip_norm=0.5 * (1 - 1e-3))
    torch.testing.assert_close(ours.norms, exact.norms, rtol=1e-5, atol=0)
    for name, value in exact.value.items():
        torch.testing.assert_close(ours.value[name], value, rtol=1e-4, atol=1e-6)


def test_invariant_3_one_unit_moves_the_sum_by_at_most_the_clip_norm() -> None:
    model, engine = Attends(FIRST, attn_mask=above, need_weights=False), get_engine("auto")
    rows = ragged([1] * 8, shortest=8, longest=8, vocabulary=VOCABULARY)
    assert (
        largest_move(lambda units: engine(model, own_tokens, units, l2_clip_norm=0.05), rows)
        <= 0.05
    )


class Crosses(Attends):
    """Keys that are not the queries: another function, which torch runs as it is."""

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.table(input_ids)
        mask = above(input_ids.shape[1])
        y = self.attention(x, 2 * x, x, attn_mask=mask, need_weights=False)[0]
        found: Tensor = self.head(y)
        return found


def test_attention_over_others_is_computed_one_unit_at_a_time() -> None:
    with counted_reference() as alone:
        get_engine("auto")(Crosses(FIRST), own_tokens, UNITS, l2_clip_norm=0.5)
    assert sum(alone) == len(UNITS)
