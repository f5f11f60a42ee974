"""Work done ahead comes out in order, once, and with its errors."""

from __future__ import annotations

import threading

import pytest

from userdp.data.ahead import ahead


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_results_come_in_order_with_their_items(workers):
    assert list(ahead(lambda n: n * n, iter(range(50)), workers=workers)) == [
        (n, n * n) for n in range(50)
    ]


def test_items_are_drawn_in_the_callers_thread_and_only_so_far_ahead():
    drawn: list[int] = []

    def items():
        for n in range(20):
            assert threading.current_thread() is threading.main_thread()
            drawn.append(n)
            yield n

    for n, _ in ahead(lambda n: n, items(), workers=2):
        assert len(drawn) <= n + 3


@pytest.mark.parametrize("where", ["function", "items"])
def test_an_error_comes_out_where_its_item_stands(where):
    def function(n):
        if n == 3 and where == "function":
            raise OSError("the disk")
        return n

    def items():
        yield from range(3)
        if where == "items":
            raise OSError("the disk")
        yield from range(3, 9)

    seen: list[int] = []
    with pytest.raises(OSError, match="the disk"):
        seen.extend(n for n, _ in ahead(function, items()))
    assert seen == [0, 1, 2] if where == "function" else seen == [0, 1]
