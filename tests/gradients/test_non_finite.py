"""Invariant 6: a unit with a non-finite gradient counts as zero, and is counted."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.gradients.counted import each
from tests.gradients.tiny import ragged, tiny
from userdp.gradients import Units, causal_lm_loss, clipped_sum, trainable_parameters
from userdp.gradients.clipping import clip_factors, squared_norm

POISON = 22


def poisoned(value: float) -> Callable[[nn.Module, Tensor, Tensor], Tensor]:
    """The loss, times ``value`` for every row that holds the token `POISON`."""

    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        hit = (input_ids == POISON).any(1)
        return causal_lm_loss(model, input_ids, lengths) * torch.where(hit, value, 1.0)

    return loss


def units_with_poison() -> tuple[list[list[list[int]]], list[list[list[int]]]]:
    rows = [[[token % POISON for token in row] for row in unit] for unit in ragged([2, 3, 1])]
    bad = [[3, 4, 5], [1, POISON, 2]]
    return rows, [rows[0], bad, rows[1], bad, rows[2]]


@pytest.mark.parametrize("stability", [None, 0.01])
def test_invariant_6_the_factor_of_a_norm_that_is_not_finite_is_zero(stability):
    """Not NaN: a NaN would stay one through any later product with zero."""
    squares = torch.tensor([float("nan"), float("inf"), 0.04, 4.0], dtype=torch.float64)
    factors = clip_factors(squares, l2_clip_norm=1.0, stability=stability)
    assert factors[:2].tolist() == [0.0, 0.0]
    assert (factors[2:] > 0).all()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.pitfall(number=16)
def test_invariant_6_twin_a_clip_by_min_or_by_multiplying_with_zero_is_caught(value: float) -> None:
    model = tiny()
    _, mixed = units_with_poison()
    parameters = list(trainable_parameters(model).values())
    totals = {"min": 0.0, "zero": 0.0}
    for input_ids, lengths, _ in map(Units.cut, each(Units.from_rows(mixed))):
        loss = poisoned(value)(model, input_ids, lengths).mean()
        gradient = torch.autograd.grad(loss, parameters)
        norm = squared_norm(gradient) ** 0.5
        one = float(gradient[0].flatten()[0])
        totals["min"] += one * min(1.0, 1.0 / norm)
        totals["zero"] += one * (1.0 / norm if norm < float("inf") else 0.0)
    assert all(total != total for total in totals.values())


def test_invariant_6_rows_that_cancel_to_something_finite_still_count_as_non_finite() -> None:
    """Each row overflows float64 when squared; their mean would be an innocent zero."""

    class Slope(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def loss(model: nn.Module, input_ids: Tensor, lengths: Tensor) -> Tensor:
        sign = torch.where(input_ids[:, 0] == 1, 1, -1).double()
        return 1e200 * sign * model.get_parameter("weight")

    result = clipped_sum(
        Slope(), loss, Units.from_rows([[[1], [2]]]), l2_clip_norm=1.0, item_clip_norm=1.0
    )
    assert result.non_finite == 1
    assert result.value["weight"].tolist() == [0.0]
