"""The vocabulary of a privacy claim: unit, adjacency, `Guarantee`; and validators.

Everything here is plain data, and of ours only the errors are imported, so that every other module
may speak these words.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from enum import StrEnum

from userdp.core.errors import UseError


class PrivacyUnit(StrEnum):
    """Whose contribution the bound is about.

    ``LONE_ITEM`` is a subject who holds one item in all. It is no claim about each item of others:
    without one of his items another subject would get another choice of those under his cap, in
    other silos and on the other side of a split.
    """

    USER = "user"
    EXAMPLE = "example"
    SUBJECT = "subject"
    LONE_ITEM = "subject who holds one item"
    SILO = "silo"


class Adjacency(StrEnum):
    """How two neighbouring data sets differ.

    ``ADD_OR_REMOVE``: one has one unit more than the other (Charles et al. 2024, Section 2).
    ``REPLACE``: one unit's data is exchanged for any other data; the number of units is fixed.
    ``ZERO_OUT``: one unit's contribution is replaced by nothing; the number of units is fixed.
    ``FIXED_GRAPH``: one user's examples change; who owns which example is public.
    """

    ADD_OR_REMOVE = "add-or-remove"
    REPLACE = "replace"
    ZERO_OUT = "zero-out"
    FIXED_GRAPH = "fixed-graph"


MIXED, NONE = "mixed", "none"
"""What a `Guarantee` says of its sampling where parts with different samplings were composed, and
where nothing is claimed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Guarantee:
    """A differential-privacy claim: everything a reader needs to know what ε means.

    Guarantee: for every pair of data sets adjacent in ``adjacency`` with respect to one ``unit``,
    the released output satisfies (``epsilon``, ``delta``)-DP. ``epsilon`` is an upper bound.

    Args:
        epsilon: upper bound, >= 0; ``inf`` where nothing can be claimed.
        delta: in [0, 1).
        unit: whose contribution is bounded.
        adjacency: how neighbouring data sets differ.
        sampling: how each step drew its data: the ``kind`` of a `userdp.sampling.Sampling`, or
            `MIXED`, or `NONE`.
        accountant: which accountant answered.
    """

    epsilon: float
    delta: float
    unit: PrivacyUnit
    adjacency: Adjacency
    sampling: str
    accountant: str

    def __post_init__(self) -> None:
        _within("epsilon", self.epsilon, self.epsilon >= 0, "at least 0")
        _within("delta", self.delta, 0 <= self.delta < 1, "in [0, 1)")

    def __str__(self) -> str:
        return (
            f"({round_up(self.epsilon)}, {delta_up(self.delta)})-DP per {self.unit}, "
            f"{self.adjacency} adjacency, sampling {self.sampling}, accountant {self.accountant}"
        )


_UPWARDS = Context(prec=400, rounding=ROUND_CEILING)
"""With all digits of the largest double, and some behind the point."""


def round_up(epsilon: float, digits: int = 4) -> str:
    """ε as text, rounded towards +∞ so that the printed number is still an upper bound.

    >>> round_up(2.00001)
    '2.0001'
    >>> round_up(float("inf"))
    'inf'
    """
    if math.isinf(epsilon):
        return "inf"
    return str(Decimal(epsilon).quantize(Decimal(1).scaleb(-digits), context=_UPWARDS))


def delta_up(delta: float, digits: int = 6) -> str:
    """δ as text, rounded towards +∞ at ``digits`` significant digits; what is short stays as it is.

    Guarantee: ``float(delta_up(delta, digits)) >= delta``, for every finite delta >= 0. What is
    rounded is the shortest decimal that means this double (its ``repr``), so that 1e-05, which as
    a double is a little more than 10^-5, is not printed as 1.00001e-05. Every δ that is shown to a
    person goes through here; JSON holds all digits.

    Args:
        delta: >= 0; inf, as what noise adds to it may be, stays inf.
        digits: significant ones, from 1 to 17.

    >>> delta_up(1e-05), delta_up(1.00000049e-6), delta_up(0.25)
    ('1e-05', '1.00001e-06', '0.25')
    """
    above = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(float(delta)))
    # `above` has at most ``digits`` digits, so this writes it out and rounds nothing
    text = f"{float(above):.{digits}g}"
    return text if float(text) >= delta else repr(float(delta))  # below 1e-307 doubles are coarse


def epsilon_up(epsilon: float, digits: int = 6) -> str:
    """ε as text, as short as it was written: `delta_up` for an ε.

    `round_up` writes four decimals, where ε was computed.

    >>> epsilon_up(2.0), epsilon_up(0.12345649), epsilon_up(float("inf"))
    ('2', '0.123457', 'inf')
    """
    return delta_up(epsilon, digits)


# Validators. Their callers write the accepted range, so that NaN fails: it compares false with
# everything.


def _within(name: str, value: float, accepted: bool, words: str) -> float:
    """``value`` as a float if it is accepted; else an error that says what would be."""
    if not accepted:
        raise UseError(f"{name} must be {words}, got {value!r}")
    return float(value)


def require_positive(name: str, value: float, *, at_most: float = math.inf) -> float:
    """``value`` as a float if 0 < value < inf (and value <= at_most), else `UseError`."""
    upper = "" if math.isinf(at_most) else f" and at most {at_most:g}"
    accepted = 0 < value < math.inf and value <= at_most
    return _within(name, value, accepted, f"finite and greater than 0{upper}")


def require_noise_multiplier(value: float) -> float:
    """σ as a float if it is in [1e-30, 1e30], else `UseError`.

    Far beyond both ends there is no privacy, or no model; and squares of σ stay numbers, so that no
    accountant overflows.
    """
    return _within("noise_multiplier", value, 1e-30 <= value <= 1e30, "finite and in [1e-30, 1e30]")


def require_probability(name: str, value: float) -> float:
    """``value`` as a float if 0 < value <= 1, else `UseError`."""
    return _within(name, value, 0 < value <= 1, "greater than 0 and at most 1")


def require_fraction(name: str, value: float) -> float:
    """``value`` as a float if 0 <= value <= 1, else `UseError`."""
    return _within(name, value, 0 <= value <= 1, "a fraction from 0 to 1")


def require_delta(value: float) -> float:
    """A target δ as a float if 0 < value < 1, else `UseError`."""
    return _within("delta", value, 0 < value < 1, "greater than 0 and less than 1")


def require_epsilon(value: float) -> float:
    """An ε as a float if 0 <= value < inf, else `UseError`."""
    return _within("epsilon", value, 0 <= value < math.inf, "finite and at least 0")


def require_count(name: str, value: float, *, at_least: int = 1, at_most: int = 10**12) -> int:
    """``value`` as an int if it is whole and in [at_least, at_most], else `UseError`."""
    accepted = at_least <= value <= at_most and int(value) == value and not isinstance(value, bool)
    _within(name, value, accepted, f"a whole number from {at_least} to {at_most}")
    return int(value)
