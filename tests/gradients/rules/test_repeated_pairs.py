"""An embedding's pairs that come again: what a device is spared counting changes no number."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from userdp.gradients.engines.rules.embedding import Sparse, first_places, pairs_of
from userdp.gradients.engines.rules.linear import Ghost
from userdp.gradients.engines.uses import Dense, Layout

VOCABULARY, WIDTH, WORDS = 7, 3, 5


LAYOUTS = [Layout(units=3, rows=3), Layout(units=2, rows=4), Layout(units=1, rows=3)]


def both(owners: Layout) -> tuple[Sparse, Sparse]:
    """The same gradients, of pairs that are each there once, and of tokens as they come."""
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCABULARY, (owners.rows, WORDS), generator=draw)
    gradient = torch.randn(owners.rows * WORDS, WIDTH, generator=draw)
    uses = []
    keys, places, bounds = pairs_of(tokens, VOCABULARY, owners)
    every = (owners.unit_of_row[:, None] * VOCABULARY + tokens).flatten()
    repeated = (
        every,
        first_places(every),
        torch.arange(owners.units + 1) * (owners.rows // owners.units * WORDS),
    )
    for here, at, ends in ((keys, places, bounds), repeated):
        sums = torch.zeros(len(here), WIDTH).index_add_(0, at, gradient)
        shape = torch.Size([VOCABULARY, WIDTH])
        use = Sparse(here // VOCABULARY, here % VOCABULARY, sums, shape, owners.units, ends)
        uses.append(use)
    assert len(uses[1].tokens) > len(uses[0].tokens)  # some come again
    return uses[0], uses[1]


def added(use: Sparse, factors: Tensor, dtype: torch.dtype) -> Tensor:
    total = torch.ones(VOCABULARY, WIDTH, dtype=dtype)
    use.add_to(total, factors)
    return total.double()


@pytest.mark.parametrize("owners", LAYOUTS)
def test_pairs_that_come_again_are_the_same_gradients(owners: Layout) -> None:
    once, again = both(owners)
    factors = torch.rand(owners.units, dtype=torch.float64)
    torch.testing.assert_close(again.squared_norms(), once.squared_norms(), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        again.dense().gradients, once.dense().gradients, rtol=1e-6, atol=1e-6
    )
    for dtype in (torch.float32, torch.float64):
        there, here = (added(use, factors, dtype) for use in (once, again))
        torch.testing.assert_close(here, there, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("owners", LAYOUTS)
def test_their_inner_products_with_a_head_are_the_same(owners: Layout) -> None:
    once, again = both(owners)
    left, right = (torch.randn(owners.rows, WORDS, width) for width in (VOCABULARY, WIDTH))
    for other in (Ghost(left, right, owners), Ghost(left, right, owners).dense()):
        expected, found = once.cross(other), again.cross(other)
        assert expected is not None
        assert found is not None
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_twin_a_sum_in_each_of_a_pairs_places_counts_twice() -> None:
    once, again = both(LAYOUTS[0])
    filled = again.sums[first_places(again.units * VOCABULARY + again.tokens)]
    twice = Sparse(again.units, again.tokens, filled, again.shape, again.count, again.bounds)
    assert bool((twice.squared_norms() > once.squared_norms() * 1.01).any())
    assert isinstance(twice.dense(), Dense)


@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_the_first_place_of_each_key(count: int) -> None:
    keys = torch.randint(9, (count,), generator=torch.Generator().manual_seed(count))
    found = first_places(keys)
    assert [keys.tolist().index(key) for key in keys.tolist()] == found.tolist()
