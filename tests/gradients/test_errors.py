"""Invariant 9: a user whose rows make the model or the loss raise an error counts as zero."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from tests.gradients.tiny import VOCABULARY, ragged, tiny
from userdp.gradients import Units, causal_lm_loss, get_engine
from userdp.gradients.clipping import squared_norm

ENGINES = ["auto", "reference"]
BEYOND = VOCABULARY + 5
"""No token of the model: its row raises an IndexError, in batches as alone."""


def picky(model: nn.Module, input_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """A loss that looks at tokens, and so is computed one user at a time."""
    if bool((input_ids[:, :2] == 7).all(1).any()):
        raise ValueError("two sevens")
    return causal_lm_loss(model, input_ids, lengths)


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("name", ENGINES)
def test_invariant_9_a_user_whose_rows_raise_counts_as_zero_and_takes_nothing_from_others(
    name, dropout
):
    model = tiny("gpt2-tied").train(dropout)
    good = ragged([1, 2, 1, 1], longest=9)
    with_one = [*good[:2], [[3, BEYOND, 4]], *good[2:]]
    found, without = (
        get_engine(name)(model, causal_lm_loss, Units.from_rows(rows, width=16), l2_clip_norm=0.7)
        for rows in (with_one, good)
    )
    assert (found.failed, without.failed) == (1, 0)
    assert math.isnan(float(found.norms[2]))
    assert bool((found.norms[[0, 1, 3, 4]] > 0).all())
    if not dropout:
        apart = squared_norm(found.value[key] - without.value[key] for key in found.value) ** 0.5
        assert apart < 1e-6 * 0.7
        assert torch.equal(found.norms[[0, 1, 3, 4]], without.norms)


@pytest.mark.parametrize("name", ENGINES)
def test_a_loss_that_raises_for_what_it_reads_costs_one_user_its_part(name: str) -> None:
    units = Units.from_rows([*ragged([1, 1]), [[7, 7, 3]]])
    found = get_engine(name)(tiny("gpt2-tied"), picky, units, l2_clip_norm=0.7)
    assert found.failed == 1


@pytest.mark.parametrize("name", ENGINES)
def test_an_error_on_made_up_rows_is_the_codes_own_and_comes_out_as_it_is(name: str) -> None:
    def broken(model: nn.Module, input_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        raise ValueError("always")

    with pytest.raises(ValueError, match="always"):
        get_engine(name)(
            tiny("gpt2-tied"), broken, Units.from_rows(ragged([1, 1])), l2_clip_norm=0.7
        )
