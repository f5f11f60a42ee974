"""`Units`: rows grouped by unit, nothing lost, nothing shared."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from userdp.core.errors import UseError
from userdp.gradients import Units

NESTED = [[[5, 6, 7], [8, 9]], [], [[1]], [[], [2, 3]]]


def each_alone(units: Units) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]:
    return [units.select(unit, unit + 1).cut() for unit in range(len(units))]


def tokens_of(units: Units) -> list[list[list[int]]]:
    return [
        [row[: int(n)].tolist() for row, n in zip(input_ids, lengths, strict=True)]
        for input_ids, lengths, _ in each_alone(units)
    ]


def test_units_give_back_exactly_the_rows_they_were_made_of() -> None:
    assert tokens_of(Units.from_rows(NESTED)) == NESTED


def test_each_unit_is_cut_to_its_own_longest_row() -> None:
    units = Units.from_rows([[[1, 2]], [[1] * 9], [[1, 2, 3], [4]]])
    assert [ids.shape for ids, *_ in each_alone(units)] == [(1, 2), (1, 9), (2, 3)]


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int64])
def test_ragged_arrays_of_a_store_become_the_same_units(dtype: type[np.integer]) -> None:
    tokens = np.array([5, 6, 7, 8, 9, 1, 2, 3], dtype=dtype)
    rows, offsets = np.array([0, 3, 5, 6, 6, 8]), np.array([0, 2, 2, 3, 5])
    units = Units.from_flat(tokens, rows, offsets, targets=tokens > 5)
    assert tokens_of(units) == NESTED
    assert torch.equal(units.targets, units.input_ids > 5)


IDS = torch.ones(3, 4, dtype=torch.int64)
LENGTHS = torch.tensor([4, 2, 0])


@pytest.mark.parametrize(
    ("lengths", "offsets"),
    [(LENGTHS + 1, [0, 3]), (LENGTHS - 1, [0, 3])]
    + [(LENGTHS, offsets) for offsets in ([0, 2], [1, 3], [0, 2, 1, 3], [])],
)
def test_units_refuse_lengths_and_offsets_out_of_range(lengths, offsets):
    with pytest.raises(UseError):
        Units(input_ids=IDS, lengths=lengths, offsets=torch.tensor(offsets, dtype=torch.int64))


def test_ragged_arrays_that_do_not_cover_the_tokens_are_refused() -> None:
    with pytest.raises(UseError, match="row offsets"):
        Units.from_flat(np.arange(5), np.array([0, 3]), np.array([0, 1]))
