"""The searches ask only where they may, and end on the side that they promise."""

from __future__ import annotations

import pytest

from userdp.accounting.certified_search import bisect


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (1.0, 0.0), (-3.0, 2.0), (2.0, -3.0)])
def test_a_bisection_asks_only_between_its_ends_and_ends_where_it_holds(low, high):
    root = low + 0.3 * (high - low)
    asked: list[float] = []

    def holds(at):
        assert min(low, high) < at < max(low, high)
        assert len(asked) < 80, "each answer halves what is left"
        asked.append(at)
        return abs(at - high) <= abs(root - high)

    found = bisect(holds, low, high)
    assert found == high or holds(found)
    assert found == pytest.approx(root, rel=1e-12)
