"""Work done ahead comes out in order, once, and with its errors."""

from __future__ import annotations

import pytest

from userdp.data.examples import ahead


def test_results_come_in_order_and_items_are_drawn_only_so_far_ahead():
    drawn: list[int] = []
    items = (drawn.append(n) or n for n in range(50))
    for place, squared in enumerate(ahead(lambda n: n * n, items)):
        assert squared == place**2
        assert len(drawn) <= place + 2


@pytest.mark.parametrize("where", ["function", "items"])
def test_an_error_comes_out_where_its_item_stands(where):
    def failing(n, here):
        if n == 3 and where == here:
            raise OSError("the disk")
        return n

    seen: list[int] = []
    items = (failing(n, "items") for n in range(9))
    with pytest.raises(OSError, match="the disk"):
        seen.extend(ahead(lambda n: failing(n, "function"), items))
    assert seen == [0, 1, 2] if where == "function" else seen == [0, 1]
