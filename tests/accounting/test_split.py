"""What is bounded of a split into large and small steps, where certain steps stand beside them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from userdp.accounting.contour import phase_of
from userdp.accounting.contour.side import make_side
from userdp.accounting.contour.split import choices, log_large, log_small
from userdp.accounting.laws import Binomial

RARE = phase_of(Binomial(trials=1, probability=1e-5), noise_multiplier=0.5, count=100)
CERTAIN = phase_of(Binomial(trials=1, probability=1.0), noise_multiplier=4.0, count=3)


@pytest.mark.parametrize("bound", [log_small, log_large])
def test_certain_steps_add_their_own_exponent_to_the_bounds_of_a_split(bound) -> None:
    """E e^{a l} of a Gaussian mechanism is e^{mu^2 a (a + 1) / 2}, mu^2 = sum T shift^2."""
    side = make_side((RARE, CERTAIN), remove=True, mass_budget=1e-20)
    assert side.mu2 == pytest.approx(3 / 16)
    splits = next(iter(choices(side, 1.0, np.log(1e-7)))).splits
    orders = np.array([0.5, 3.0, 20.0])
    with_them = bound(side, splits, orders)
    without = bound(replace(side, mu2=0.0), splits, orders)
    assert with_them - without == pytest.approx(0.5 * side.mu2 * orders * (orders + 1), rel=1e-6)
