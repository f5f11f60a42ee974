"""A certified answer: two numbers with the truth between them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Bracket:
    """Certified bounds of ε or δ: ``lower <= truth <= upper``.

    Report ``upper``: accounting is pessimistic. ``accountant`` names what produced the numbers.
    ``note`` is empty unless the bracket is wider than usual; then it says why.
    """

    lower: float
    upper: float
    accountant: str
    note: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.lower <= self.upper:
            raise ValueError(f"not a bracket: lower {self.lower!r}, upper {self.upper!r}")

    @property
    def width(self) -> float:
        """``upper - lower``."""
        return self.upper - self.lower
