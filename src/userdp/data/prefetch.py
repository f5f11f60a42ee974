"""Work ahead in a thread, so that drawing and gathering hide behind the step."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from userdp.errors import FailureError

T = TypeVar("T")
_POLL_SECONDS = 0.1


class Prefetch(Generic[T]):
    """Calls ``produce`` in a thread, at most ``depth`` results ahead. A context manager.

    Guarantee: results come in the order of the calls, each once; at most ``depth + 1`` are held,
    so memory stays flat over any number of steps. An error of ``produce`` is raised by the `next`
    that would have had its result; no later result comes. What was produced ahead and never
    taken is thrown away: a sampler must not mind (each draw is independent of the others).

    Args:
        produce: called with nothing, again and again, by one thread.
        depth: results ahead, at least 1.

    >>> numbers = iter(range(10))
    >>> with Prefetch(lambda: next(numbers), depth=2) as ahead:
    ...     [ahead.next() for _ in range(3)]
    [0, 1, 2]
    """

    def __init__(self, produce: Callable[[], T], *, depth: int = 2) -> None:
        self._produce = produce
        self._results: queue.Queue[T | _Failed] = queue.Queue(maxsize=max(1, depth))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="prefetch", daemon=True)

    def next(self) -> T:
        """The next result; waits for it.

        Raises:
            FailureError: the block was left.
        """
        if self._stop.is_set():
            raise FailureError("prefetching has stopped")
        result = self._results.get()
        if isinstance(result, _Failed):
            self._stop.set()
            raise result.error
        return result

    def _work(self) -> None:
        while not self._stop.is_set():
            result: T | _Failed
            try:
                result = self._produce()
            except BaseException as error:
                result = _Failed(error)
            while not self._stop.is_set():
                try:
                    self._results.put(result, timeout=_POLL_SECONDS)
                    break
                except queue.Full:
                    continue
            if isinstance(result, _Failed):
                return

    def __enter__(self) -> Prefetch[T]:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        while not self._results.empty():
            self._results.get_nowait()
        self._thread.join()


class _Failed:
    def __init__(self, error: BaseException) -> None:
        self.error = error
