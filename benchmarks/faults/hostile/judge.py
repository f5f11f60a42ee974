"""What came of a case: a right result, a refusal, or a finding."""

from __future__ import annotations

import os
import signal
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import FrameType

from benchmarks.faults.hostile.cases import Case, Target, World
from benchmarks.faults.hostile.watch import Watch, forget_peak, peak

_SECONDS = 10.0
"""Of processor time: no case is larger than some 100 kB, and most take milliseconds."""
_MEMORY = 300
"""MiB that a case may take beside what the process holds already."""
_LONGEST = 4000
"""Letters of an error. One that tells more is not one clear error."""


class Verdict(StrEnum):
    """What became of a case."""

    RIGHT = "right"
    REFUSED = "refused"
    FINDING = "finding"


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A verdict on a case.

    Args:
        verdict: as it says.
        site: of a finding: what happened, and in which function; findings of one kind have one.
        why: the error, in words.
    """

    verdict: Verdict
    site: str = ""
    why: str = ""


class TooLong(BaseException):
    """A case took too long; no `Exception`, so that no reader answers it."""


class Judge:
    """Tries cases of one target, one after another.

    Args:
        target: whose world it is.
        folder: empty, for the world; on a disk that forgets, so that syncs cost nothing.
        watch: of the process; it watches ``folder`` or one above it.
        seconds: of processor time that a case may take.
    """

    def __init__(
        self, target: Target, folder: Path, watch: Watch, *, seconds: float = _SECONDS
    ) -> None:
        self._seconds = seconds
        self.target, self.world, self._watch = target, World(target, folder), watch
        self._scratch = folder / "scratch"
        self._scratch.mkdir()

    def check_world(self) -> None:
        """That nothing is wrong with the world itself; else no case of it would say anything."""
        self.target.read(self.world.with_case(None))  # which loads what its readers need
        outcome = self._judged(self.world.with_case(None))
        if outcome.verdict is not Verdict.RIGHT:
            raise RuntimeError(f"{self.target.name}, as it is made: {outcome}")

    def judge(self, case: Case) -> Outcome:
        """Read a fresh world with ``case`` in it."""
        try:
            folder = self.world.with_case(case)
        except OSError as error:  # a name or a content that no file can have
            return Outcome(verdict=Verdict.REFUSED, why=str(error))
        return self._judged(folder)

    def _judged(self, folder: Path) -> Outcome:
        # Imported late: a process that measures coverage loads the library in its own way.
        from userdp.errors import UserdpError

        forget_peak()
        before, begin = peak(), time.process_time()
        try:
            with self._surroundings(), _timer(self._seconds):
                self.target.read(folder)
            outcome = Outcome(verdict=Verdict.RIGHT)
        except UserdpError as error:
            outcome = _refusal(error)
        except AssertionError as error:
            outcome = _finding("wrong result", error)
        # Whatever else a reader raises is what is looked for, SystemExit and RecursionError too.
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            outcome = _finding(type(error).__name__, error)
        took, grown = time.process_time() - begin, peak() - before
        wrong = [*self._watch.seen, *self._left(folder)]
        if wrong:
            return Outcome(verdict=Verdict.FINDING, site=_short(wrong[0]), why="; ".join(wrong))
        if grown > _MEMORY:
            why = f"{grown} MiB, and then: {outcome}"
            return Outcome(verdict=Verdict.FINDING, site="much memory", why=why)
        if took > self._seconds and outcome.verdict is not Verdict.FINDING:
            return Outcome(verdict=Verdict.FINDING, site="much time", why=f"{took:.0f} s")
        return outcome

    def _left(self, folder: Path) -> Iterator[str]:
        """What lies half-written in the world, or was forgotten beside it."""
        from userdp import files

        for top in (folder, folder.with_name("out"), self._scratch):
            for path in sorted(top.rglob("*")):
                if path.name.startswith(files.TEMPORARY) or top == self._scratch:
                    yield f"left behind: {path.name}"

    @contextmanager
    def _surroundings(self) -> Iterator[None]:
        """Temporary files lie where they are looked for."""
        old, was = tempfile.tempdir, os.environ.get("TMPDIR")
        tempfile.tempdir = os.environ["TMPDIR"] = str(self._scratch)
        try:
            with self._watch.around(follows=self.target.follows_paths, starts=self.target.starts):
                yield
        finally:
            tempfile.tempdir = old
            if was is None:
                del os.environ["TMPDIR"]
            else:
                os.environ["TMPDIR"] = was


def _refusal(error: Exception) -> Outcome:
    """Whether a refusal is one clear error."""
    text = str(error)
    problem = None
    if len(text) > _LONGEST:
        problem = f"an error of {len(text)} letters"
    elif not text.strip():
        problem = "an error without words"
    elif any(not (one.isprintable() or one in "\n\t") for one in text):
        problem = "an error that cannot be printed"
    if problem is not None:
        return Outcome(
            verdict=Verdict.FINDING,
            site=f"{problem.partition(' of ')[0]} in {_place(error)}",
            why=ascii(text)[:500],
        )
    return Outcome(verdict=Verdict.REFUSED, why=text)


def _finding(kind: str, error: BaseException) -> Outcome:
    why = f"{type(error).__name__}: {error!s:.500}"
    return Outcome(verdict=Verdict.FINDING, site=f"{kind} in {_place(error)}", why=ascii(why))


def _place(error: BaseException) -> str:
    """The innermost function of the library, or of a target, that an error went through."""
    place = "nowhere"
    for frame in traceback.extract_tb(error.__traceback__):
        for top in ("/userdp/", "/benchmarks/faults/hostile/targets/"):
            if top in frame.filename:
                place = f"{frame.filename.rpartition(top)[2]}:{frame.name}"
    return place


def _short(text: str) -> str:
    return text.partition(":")[0].partition("(")[0]


@contextmanager
def _timer(seconds: float) -> Iterator[None]:
    """`TooLong` after so many seconds of processor time."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise TooLong(f"{seconds:.0f} s of processor time")

    old = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, old)
