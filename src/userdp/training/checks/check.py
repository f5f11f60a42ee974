"""`Check`: one question about the mechanism, and `Measured`: one number of its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from userdp.training.checks.subject import Subject


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One number that a right mechanism keeps within a bound.

    Args:
        what: was measured, in words, with its unit.
        value: what it came to.
        bound: the most that it may be.
    """

    what: str
    value: float
    bound: float

    @property
    def passed(self) -> bool:
        """Whether it is within the bound; NaN never is."""
        return self.value <= self.bound

    @property
    def strain(self) -> float:
        """The part of the bound that is used up; infinite where it is not kept."""
        if not self.passed:
            return float("inf")
        return self.value / self.bound if self.bound > 0 else 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One question.

    Args:
        name: in two or three words.
        invariant: its number in docs/invariants.md.
        claim: what holds where it passes; follows "that".
        by_engine: its answer is the engine's, and not the machine's alone.
        measure: measures a subject. A collective: every process calls it, and all pass or none.
            Nothing measured means that this subject cannot be asked (a model without dropout has no
            masks).
    """

    name: str
    invariant: int
    claim: str
    measure: Callable[[Subject], Iterator[Measured]]
    by_engine: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What came of a check.

    Args:
        check: that was asked.
        worst: of all that was measured, what strained its bound most; None where nothing was.
    """

    check: Check
    worst: Measured | None

    def __str__(self) -> str:
        """What did not hold."""
        worst = self.worst
        measured = "" if worst is None else f": {worst.what} came to {worst.value:.6g}, "
        most = "" if worst is None else f"where at most {worst.bound:.6g} is right"
        return f"invariant {self.check.invariant} asks that {self.check.claim}{measured}{most}"

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against it."""
        return self.worst is None or self.worst.passed
