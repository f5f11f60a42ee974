"""ELS or ULS: whichever adds less noise to the mean gradient at the same compute, and why."""

from __future__ import annotations

from dataclasses import dataclass

from userdp.planning.els import ElsCell
from userdp.planning.uls import UlsCell


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A recommendation, with the numbers behind it.

    Args:
        cell: the configuration recommended.
        ratio: noise of ELS divided by that of ULS; None if there is no ELS configuration.
        reason: in words.
    """

    cell: UlsCell | ElsCell
    ratio: float | None
    reason: str


def choose(uls: UlsCell, els: ElsCell | None, *, example_norm: float, why_no_els: str) -> Choice:
    """The one of less noise per mean gradient; ULS where both are equal.

    var(ζ_ELS) ≤ var(ζ_ULS) if and only if L_ELS σ_ELS / B ≤ L_ULS σ_ULS / M, which is Equation 7
    where G M = B.

    Args:
        uls: the best ULS configuration.
        els: the ELS configuration of the median rule at the same compute, if there is one.
        example_norm: L_ELS.
        why_no_els: said where there is none.

    Source: Charles et al. 2024, Equations 5 to 7.
    """
    of_uls = describe(uls, example_norm=example_norm)
    if els is None:
        return Choice(cell=uls, ratio=None, reason=f"ULS: {of_uls}. {why_no_els}")
    of_els = describe(els, example_norm=example_norm)
    ratio = els.noise_std / uls.noise_std
    left = example_norm * els.noise_multiplier
    right = els.batch_size / uls.cohort_size * uls.user_norm * uls.noise_multiplier
    equation = (
        f"L_ELS σ_ELS = {left:.4g} {'>' if ratio > 1 else '≤'} (B/M) L_ULS σ_ULS = {right:.4g}"
    )
    if ratio >= 1:
        verdict = (
            f"ULS adds less noise: {of_uls}. ELS would add {ratio:.3g} times as much: {of_els}"
        )
    else:
        less = 1 / ratio
        verdict = f"ELS adds less noise: {of_els}. ULS would add {less:.3g} times as much: {of_uls}"
    chosen = uls if ratio >= 1 else els
    return Choice(cell=chosen, ratio=ratio, reason=f"{verdict}. Equation 7: {equation}.")


def describe(cell: UlsCell | ElsCell, *, example_norm: float) -> str:
    """A configuration in words; ``example_norm`` is L_ELS."""
    if isinstance(cell, UlsCell):
        each = "one example" if cell.group_size == 1 else f"up to {cell.group_size} examples"
        return (
            f"{cell.noise_std:.4g} on each coordinate of the mean gradient (σ = "
            f"{cell.noise_multiplier:.4g}, {cell.cohort_size:.5g} users a step with {each} each, "
            f"L_ULS = {cell.user_norm:.4g})"
        )
    return (
        f"{cell.noise_std:.4g} on each coordinate of the mean gradient (σ = "
        f"{cell.noise_multiplier:.4g}, {cell.batch_size:.5g} examples a step, at most "
        f"{cell.group_size} of a user in all, L_ELS = {example_norm:.4g})"
    )
