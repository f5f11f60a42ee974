"""Norms from Gram matrices are never too small, at the widths of vocabularies, on the worst rows.

The rows here are made to be worst: two positions (or halves of many) that nearly cancel, each row
constant, so that every addition of a float32 dot product rounds the same way; their two values are
searched for. As found, in one piece, such norms are up to 0.19 too small where the margin is 1e-3.
"""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from userdp.gradients.engines import rounding, uses
from userdp.gradients.engines.rounding import gram_norms
from userdp.gradients.engines.rules import linear
from userdp.gradients.engines.rules.embedding import Sparse
from userdp.gradients.engines.rules.linear import Ghost
from userdp.gradients.engines.uses import Dense

WIDTHS = [2**16, 2**18]
LEFT = 0.0325
"""What is left of two opposite positions: a condition of (2 / 0.0325)^2, just below the limit."""


def cancelling(a: float, b: float, width: int, positions: int = 2) -> tuple[Tensor, Tensor]:
    """Constant rows of a and b in turn, whose outer products nearly cancel."""
    values = torch.tensor([a, b]).repeat(positions // 2)
    signs = torch.tensor([1.0, LEFT - 1]).repeat(positions // 2)
    return values[:, None].expand(-1, width).contiguous(), (signs / values)[:, None]


def shortfall(a: float, b: float, width: int) -> float:
    """By how much, relatively, the norm is too small; 0 where it is not trusted."""
    left, right = cancelling(a, b, width)
    use = Ghost(left[None], right[None])
    found = torch.where(use.squared_norms().isnan(), torch.nan, use.gram_norms().most)
    true = width * float((left[:, :1].double() * right.double()).sum()) ** 2
    return 0.0 if bool(found.isnan()) else 1 - math.sqrt(float(found) / true)


def search(width: int, tries: int = 12) -> list[tuple[float, float]]:
    """The three worst pairs of values: random ones, then near the best."""
    draw, found = random.Random(1), {}
    for number in range(2 * tries):
        pair = 1 + draw.random(), 1 + draw.random()
        if number >= tries:
            best = max(found, key=found.__getitem__)
            pair = best[0] + 1e-3 * draw.gauss(0, 1), best[1] + 1e-3 * draw.gauss(0, 1)
        found[pair] = shortfall(*pair, width)
    return sorted(found, key=found.__getitem__)[-3:]


def as_found(patch: pytest.MonkeyPatch) -> None:
    """Break Gram norms: products in one piece, and nothing added for what was lost."""
    patch.setattr(rounding, "_COLUMNS", 2**20)
    patch.setattr(rounding, "gram_error", lambda *of: 0.0)
    patch.setattr(linear, "at_least", torch.zeros_like)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.pitfall(number=34)
def test_invariant_3_a_gram_norm_is_never_too_small(width: int) -> None:
    left, right = cancelling(1.5, 1.25, width)
    assert bool(Ghost(left[None], right[None]).squared_norms().isfinite())
    assert shortfall(*search(width)[-1], width) <= 0


@pytest.mark.parametrize("width", WIDTHS)
def test_invariant_3_twin_gram_norms_as_they_are_found_are_caught(width, monkeypatch):
    as_found(monkeypatch)
    assert shortfall(*search(width)[-1], width) > 1e-2  # ten times float32's margin


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("p", "q", "positions"), [(3, 1, 1), (1023, 5, 7), (600, 300, 32), (5000, 2, 3), (700, 1, 260)]
)
def test_invariant_3_the_bound_holds_on_random_rows_of_any_condition(p, q, positions, dtype):
    """Against 64 bits; and it is no larger than it need be."""
    generator = torch.Generator().manual_seed(p)
    for spread in (1.0, 1e-1, 1e-2):
        signs = torch.randn(positions, 1, generator=generator).sign()
        left = (1 + spread * torch.randn(positions, p, generator=generator)).to(dtype)
        right = (signs * (1 + spread * torch.randn(positions, q, generator=generator))).to(dtype)
        one, other = (side.double().numpy().astype(np.longdouble) for side in (left, right))
        exact = float(np.square(one.T @ other).sum())
        norms, wide = gram_norms(left[None], right[None]), uses.wide(left).dtype
        allowed = sum(rounding.gram_error(width, positions, wide) for width in (p, q))
        slack = 1.01 * allowed * float(norms.lengths) ** 2 + 1e-15 * exact
        assert exact <= float(norms.most) <= float(norms.found) + slack


@pytest.mark.parametrize("tiny", [1e-25, 1e-38, 1e-44])
def test_invariant_3_rows_whose_squares_vanish_are_not_left_out(tiny: float) -> None:
    """In float32 they are nothing, and their partners may be huge."""
    left, right = torch.full((2, 3), tiny), torch.full((2, 5), 1e17)
    for one, other in ((left, right), (right, left)):
        assert 0 < exact_square(one, other) <= float(Ghost(one[None], other[None]).at_most()[0])
    assert float((left @ left.T).sum()) == 0.0 or tiny > 1e-23  # broken twin


def exact_square(left: Tensor, right: Tensor) -> float:
    """Of (positions, p) and (positions, q); without any rounding but the last."""
    rows = [list(map(Fraction, row)) for row in left.tolist()]
    others = [list(map(Fraction, row)) for row in right.tolist()]
    entries = (
        sum((row[i] * other[j] for row, other in zip(rows, others, strict=True)), Fraction(0))
        for i in range(left.shape[1])
        for j in range(right.shape[1])
    )
    return float(sum((entry**2 for entry in entries), Fraction(0)))


def test_tied_embeddings_that_cancel_are_computed_by_other_means() -> None:
    """The cross term is float64; a joint norm that is a small rest of both is not trusted."""
    generator = torch.Generator().manual_seed(0)
    left, right = (
        torch.randn(1, 6, 40, generator=generator),
        torch.randn(1, 6, 8, generator=generator),
    )
    tokens, joint = torch.arange(40), left[0].double().T @ right[0].double()
    for share, trusted in ((0.0, True), (0.4, True), (0.9, False), (0.999, False)):
        sums = (-share * joint).float()
        other = Sparse(tokens[None], sums[None], torch.Size([40, 8]))
        for use in (Ghost(left, right), Dense(joint.float()[None])):
            found, _ = uses.squared_norms([use, other])
            true = float((joint + sums.double()).square().sum())
            assert bool(found.isnan()) is not trusted
            if trusted:
                assert true * (1 - 2e-5) <= float(found) <= true * (1 + 1e-4)
