"""An embedding's tokens that come again: what a device is spared counting changes no number."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from userdp.gradients.engines.rules.embedding import Sparse, first_places
from userdp.gradients.engines.rules.linear import Ghost

VOCABULARY, WIDTH, WORDS, UNITS = 7, 3, 10, 3
SHAPE = torch.Size([VOCABULARY, WIDTH])


def kept() -> tuple[Sparse, Tensor]:
    """A use of a table, and the gradients that it stands for, (units, vocabulary, width)."""
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(VOCABULARY, (UNITS, WORDS), generator=draw)
    each = torch.randn(UNITS, WORDS, WIDTH, generator=draw)
    gradients, sums = torch.zeros(UNITS, *SHAPE), torch.zeros_like(each)
    for unit in range(UNITS):
        gradients[unit].index_add_(0, tokens[unit], each[unit])
        sums[unit].index_add_(0, first_places(tokens[unit]), each[unit])
    return Sparse(tokens, sums, SHAPE), gradients


def test_tokens_that_come_again_count_once() -> None:
    use, gradients = kept()
    factors = torch.rand(UNITS, dtype=torch.float64)
    torch.testing.assert_close(use.dense().gradients, gradients)
    squares = gradients.double().square().sum((1, 2))
    torch.testing.assert_close(use.squared_norms(), squares, rtol=1e-6, atol=1e-6)
    exact = 1 + (factors[:, None, None] * gradients).sum(0)
    for dtype in (torch.float32, torch.float64):
        total = torch.ones(SHAPE, dtype=dtype)
        use.add_to(total, factors)
        torch.testing.assert_close(total.double(), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("at_a_time", [1, WORDS * 5 * 2, 1 << 22])
def test_their_inner_products_with_a_head_are_those_of_the_gradients(
    at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("userdp.gradients.engines.rules.embedding._PAIRED", at_a_time)
    use, gradients = kept()
    head = Ghost(*(torch.randn(UNITS, 5, width) for width in (VOCABULARY, WIDTH)))
    exact = (head.dense().gradients.double() * gradients).sum((1, 2))
    for other in (head, head.dense()):
        found = use.cross(other)
        assert found is not None
        torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-5)


def test_twin_a_sum_in_each_of_a_tokens_places_counts_twice() -> None:
    use, gradients = kept()
    first = torch.stack([first_places(tokens) for tokens in use.tokens])
    filled = use.sums.gather(1, first[..., None].expand_as(use.sums))
    squares = Sparse(use.tokens, filled, SHAPE).squared_norms()
    assert bool((squares > 1.01 * gradients.double().square().sum((1, 2))).any())


@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_the_first_place_of_each_key(count: int) -> None:
    keys = torch.randint(9, (count,), generator=torch.Generator().manual_seed(count))
    found = first_places(keys)
    assert [keys.tolist().index(key) for key in keys.tolist()] == found.tolist()
