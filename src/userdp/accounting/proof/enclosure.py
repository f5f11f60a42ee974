"""δ(ε) of a composition, enclosed in both directions, or why it could not be."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from userdp.accounting.proof.balls import flint_library, float_above
from userdp.accounting.proof.closed import (
    add_is_zero,
    dominating_variance,
    gaussian_delta,
    participation,
    single_step_delta,
)
from userdp.accounting.proof.law import Steps
from userdp.accounting.proof.sums import OneWay, sum_delta

WANTED = 1e-9


@dataclass(frozen=True, slots=True)
class Enclosure:
    """lower ≤ δ(ε) ≤ upper, proven; ``remove`` and ``add`` one by one.

    ``why`` is empty where both directions were summed; else what kept one from it (its bounds
    still hold, and are wide).
    """

    epsilon: float
    remove: OneWay
    add: OneWay
    seconds: float
    why: str = ""

    @property
    def lower(self) -> float:
        return max(self.remove.lower, self.add.lower)

    @property
    def upper(self) -> float:
        return max(self.remove.upper, self.add.upper)

    @property
    def bits(self) -> int:
        """The largest precision that was used."""
        return max(self.remove.bits, self.add.bits)

    @property
    def relative_width(self) -> float:
        """(upper - lower) / upper; 0 for an exact 0."""
        return (self.upper - self.lower) / self.upper if self.upper > 0 else 0.0


def enclose_delta(
    phases: tuple[Steps, ...], epsilon: float, *, wanted: float = WANTED, size: float = 0.0
) -> Enclosure:
    """Enclose δ(ε) of a composition of steps, for add-or-remove adjacency.

    Guarantee: the bounds hold for the laws and the ε given, as exact dyadic numbers; each operation
    between them and the floats returned is one on balls (docs/proof.md). It says nothing about
    whether these laws dominate a training algorithm.

    Args:
        phases: at least one.
        epsilon: ≥ 0, finite.
        wanted: relative width at which to stop.
        size: about how large δ is, where that is known; else 0. It is not relied upon.

    Raises:
        UseError: python-flint is not installed.
    """
    flint = flint_library()
    started = time.process_time()
    with flint.ctx.workprec(256):
        variance = flint.arb(0)
        for steps in phases:
            if steps.is_gaussian:
                variance += steps.count * (steps.unit * steps.law.most) ** 2
        mixed = tuple(steps for steps in phases if not steps.is_gaussian)
    if not mixed:
        both = gaussian_delta(variance, epsilon)
        return Enclosure(epsilon, both, both, time.process_time() - started)
    with flint.ctx.workprec(256):
        capped = float_above(participation(phases))
        capped = min(capped, gaussian_delta(dominating_variance(phases), epsilon).upper)
    ways: list[OneWay] = []
    reasons: list[str] = []
    for remove in (True, False):
        if not remove and len(mixed) == len(phases) and add_is_zero(mixed, epsilon):
            ways.append(OneWay(0.0, 0.0, "exactly 0", 256))
            continue
        try:
            if len(phases) == 1 and phases[0].count == 1:
                way = single_step_delta(phases[0], epsilon, remove=remove)
            else:
                way = sum_delta(mixed, variance, epsilon, remove=remove, wanted=wanted, size=size)
        except ArithmeticError as error:
            way = OneWay(0.0, 1.0, "none", why=str(error))
        if way.why:
            reasons.append(f"{'remove' if remove else 'add'}: {way.why}")
        if capped < way.upper:
            way = replace(way, upper=capped, how=f"{way.how}, dominating bound")
        ways.append(way)
    return Enclosure(epsilon, ways[0], ways[1], time.process_time() - started, "; ".join(reasons))
