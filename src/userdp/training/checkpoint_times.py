"""When a run writes a checkpoint: by its steps and by the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SHARE = 20
"""Checkpoints by the clock take at most one part in so many of a run's time: writing a large model
may take longer than the time after which the next one would be due."""


class CheckpointTimes:
    """Tells a loop when its next checkpoint is due.

    Args:
        steps: between two checkpoints, at most.
        seconds: between two checkpoints, at most; more where writing one takes long.
        clock: seconds, as `time.monotonic`.
    """

    def __init__(
        self, *, steps: int, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._steps, self._seconds, self._clock = steps, seconds, clock
        self._wait, self._last = seconds, clock()

    def due(self, step: int) -> bool:
        """Whether one is due after this step."""
        return step % self._steps == 0 or self._clock() - self._last >= self._wait

    @contextmanager
    def writing(self) -> Iterator[None]:
        """The block writes one."""
        begin = self._clock()
        yield
        self._last = self._clock()
        self._wait = max(self._seconds, _SHARE * (self._last - begin))
