"""A plain pair of certified bounds, before it is given a name and a note."""

from __future__ import annotations

from dataclasses import dataclass

from userdp.errors import FailureError

_ROUNDING = 1e-12  # relative; brackets carry their own allowances, so this is generous


@dataclass(frozen=True, slots=True)
class Bounds:
    """lower <= truth <= upper."""

    lower: float
    upper: float

    def meet(self, other: Bounds) -> Bounds:
        """The intersection of two certified brackets.

        Raises:
            FailureError: there is none. Then one of the brackets is wrong, and no answer is better
                than either. Where they miss each other by rounding alone, the gap is the answer.
        """
        lower, upper = max(self.lower, other.lower), min(self.upper, other.upper)
        if lower - upper > _ROUNDING * lower:
            raise FailureError(
                f"two certified brackets exclude each other: [{self.lower!r}, {self.upper!r}] and "
                f"[{other.lower!r}, {other.upper!r}]; one of them is wrong, so none is reported",
                hint="use another accountant for this setting, and report the setting as a bug",
            )
        return Bounds(min(lower, upper), max(lower, upper))

    def join(self, other: Bounds) -> Bounds:
        """Certified bounds of the larger of two quantities."""
        return Bounds(max(self.lower, other.lower), max(self.upper, other.upper))
