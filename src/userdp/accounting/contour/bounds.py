"""A plain pair of certified bounds, before it is given a name and a note."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """lower <= truth <= upper."""

    lower: float
    upper: float

    def meet(self, other: Bounds) -> Bounds:
        """The intersection of two certified brackets."""
        lower, upper = max(self.lower, other.lower), min(self.upper, other.upper)
        return Bounds(min(lower, upper), upper)

    def join(self, other: Bounds) -> Bounds:
        """Certified bounds of the larger of two quantities."""
        return Bounds(max(self.lower, other.lower), max(self.upper, other.upper))
