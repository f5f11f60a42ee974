"""Progress of long work, with the time that is left, shown by tqdm.

In a terminal or a notebook it is a bar; elsewhere (a file, a pipe, a scheduler's log) a line every
30 seconds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tqdm.auto import tqdm

from userdp.core.stages import Progress

_SECONDS = 30.0
"""Between two lines where nothing can be redrawn."""
_NUMBERS = "{n_fmt} of {total_fmt}, {elapsed} so far, {remaining} left"
_NO_NUMBERS = "{desc}: {elapsed} so far"


@contextmanager
def shown(progress: Progress | None = None) -> Iterator[Progress]:
    """The given receiver of progress; by default a bar, or lines, on stderr."""
    if progress is not None:
        yield progress
        return
    bar = StageBar()
    try:
        yield bar
    finally:
        bar.close()


def say(message: str) -> None:
    """A sentence on stderr, above the bar if there is one."""
    tqdm.write(message, file=sys.stderr)


class StageBar(Progress):
    """`userdp.core.stages.Progress` as one bar of tqdm for each stage.

    A stage of unknown size shows no number: how many people are asked may be nobody's to know.
    """

    def __init__(self) -> None:
        self._bar: Any = None

    def stage(self, name: str, total: int | None, *, unit: str = "") -> None:
        """A new bar; the one before stands where it ended."""
        self.close()
        redraws = sys.stderr.isatty() or "ipykernel" in sys.modules
        counted = f"{{desc}}: {{percentage:3.0f}}%|{{bar}}| {_NUMBERS}"
        lines = f"{{desc}}: {unit + ' ' if unit else ''}{_NUMBERS}"
        self._bar = tqdm(
            total=total,
            desc=name,
            bar_format=_NO_NUMBERS if total is None else counted if redraws else lines,
            file=sys.stderr if redraws else _Lines(),
            mininterval=0.2 if redraws else _SECONDS,
            delay=0 if redraws else _SECONDS,  # short work is no line of a log
            dynamic_ncols=redraws,
        )

    def at(self, done: int) -> None:
        """Move it; a run that was resumed begins in the middle, and its rate is of what it does."""
        if self._bar is None or self._bar.total is None:
            return
        if not self._bar.n:
            self._bar.initial = self._bar.n = self._bar.last_print_n = done
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        """Leave the bar of the last stage as it stands."""
        if self._bar is not None:
            self._bar.close()


class _Lines:
    """Stderr as tqdm redraws on it, each drawing a line of its own."""

    def write(self, text: str) -> None:
        """Write what is drawn, without going back over what was."""
        if words := text.strip("\r\n "):
            sys.stderr.write(f"{words}\n")

    def flush(self) -> None:
        """Write out what stderr holds back."""
        sys.stderr.flush()
