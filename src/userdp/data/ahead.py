"""Work on items ahead of whoever takes the results, in threads and in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def ahead(
    function: Callable[[_Item], _Result], items: Iterable[_Item], *, workers: int = 1
) -> Iterator[tuple[_Item, _Result]]:
    """Each item with ``function`` of it, in order.

    ``items`` is advanced in the caller's thread; ``function`` runs in ``workers`` others on at
    most ``workers`` items beyond the one that was taken last. An error of ``function`` comes out
    where its item stands, one of ``items`` at once.
    """
    waiting: deque[tuple[_Item, Future[_Result]]] = deque()
    with ThreadPoolExecutor(workers, thread_name_prefix="ahead") as pool:
        for item in items:
            waiting.append((item, pool.submit(function, item)))
            del item
            if len(waiting) > workers:
                done, future = waiting.popleft()
                yield done, future.result()
        while waiting:
            done, future = waiting.popleft()
            yield done, future.result()
