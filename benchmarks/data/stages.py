"""Busy seconds by stage, of functions that are wrapped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class Clock:
    """Seconds by stage; stages nest, and an inner one is taken off the outer.

    Each thread has its own stack of stages, so what two threads do at once counts twice: the
    stages are busy seconds, and the wall's are told apart from them.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._threads = threading.local()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        if not hasattr(self._threads, "open"):
            self._threads.open = []
        within: list[list[float]] = self._threads.open
        frame = [time.perf_counter(), 0.0]
        within.append(frame)
        try:
            yield
        finally:
            spent = time.perf_counter() - frame[0]
            within.pop()
            self.seconds[name] = self.seconds.get(name, 0.0) + spent - frame[1]
            if within:
                within[-1][1] += spent

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Any:
            with self(name):
                return function(*arguments, **options)

        return timed

    def iterate(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **options: Any) -> Iterator[Any]:
            items = iter(function(*arguments, **options))
            while True:
                with self(name):
                    item = next(items, None)
                if item is None:
                    return
                yield item

        return timed
