"""The accountants by name: ours, and the second opinions beside it."""

from __future__ import annotations

import math
from enum import StrEnum
from functools import lru_cache
from typing import TypeVar

from userdp.accounting import group_privacy, rdp
from userdp.accounting.bracket import Bracket
from userdp.accounting.calibration import calibrate
from userdp.accounting.laws import Binomial
from userdp.accounting.mechanisms import Mixture, NoisySteps
from userdp.accounting.roots import least
from userdp.errors import UseError
from userdp.vocabulary import delta_up, epsilon_up, require_delta, require_positive


class Accountant(StrEnum):
    """Names the accountant that computes an ε.

    ``CONTOUR``: ours; certified bounds of the exact answer (docs/accounting.md).
    ``DP_ACCOUNTING``: the PLD accountant of the library dp-accounting, with its own error.
    ``RDP``: Rényi divergences, converted; an upper bound, and looser.
    ``GROUP_PRIVACY``: the example-level guarantee lifted by the best lemma that knows a single
    (ε, δ); what one had before (Chua et al. 2024, Algorithm 1).
    ``GROUP_PRIVACY_VADHAN``: the same by Vadhan's lemma, which is looser.
    """

    CONTOUR = "contour"
    DP_ACCOUNTING = "dp-accounting"
    RDP = "rdp"
    GROUP_PRIVACY = "group-privacy"
    GROUP_PRIVACY_VADHAN = "group-privacy-vadhan"

    @property
    def lifts(self) -> bool:
        """Whether it prices single examples and lifts the price to a user's by a lemma."""
        return self in _LEMMAS


_LEMMAS = {
    Accountant.GROUP_PRIVACY: group_privacy.Conversion.BEST,
    Accountant.GROUP_PRIVACY_VADHAN: group_privacy.Conversion.VADHAN,
}


def epsilon_by(accountant: Accountant, mechanism: NoisySteps, delta: float) -> Bracket:
    """ε of a mechanism at ``delta``, computed by one accountant.

    Guarantee: ``upper`` is an upper bound (for dp-accounting up to its own round-off of about
    1e-13 in δ). ``lower`` is 0 for all but ``contour``.

    Raises:
        UseError: this accountant knows no bound for this mechanism.
        FailureError: the library dp-accounting is not installed.
    """
    return _epsilon_by(accountant, mechanism, require_delta(delta))


@lru_cache(maxsize=1024)  # one command asks for the same price in several places, for each charge
def _epsilon_by(accountant: Accountant, mechanism: NoisySteps, delta: float) -> Bracket:
    if accountant is Accountant.CONTOUR:
        return mechanism.epsilon(delta)
    mixture = _mixture(accountant, mechanism)
    if accountant is Accountant.DP_ACCOUNTING:
        from userdp.accounting import dp_accounting_backend

        return dp_accounting_backend.epsilon(mixture.dp_event(), delta)
    if accountant is Accountant.RDP:
        law = mixture.law
        if not isinstance(law, Binomial) or mixture.scale != 1:
            raise _no_bound(accountant, mechanism)
        return rdp.epsilon(
            delta,
            sampling_probability=law.probability,
            noise_multiplier=mixture.noise_multiplier,
            group_size=law.trials,
            steps=mixture.steps,
        )
    example = mixture.of(1)
    upper = group_privacy.group_epsilon(
        lambda epsilon: example.delta(epsilon).upper, mixture.items, delta, _LEMMAS[accountant]
    )
    return Bracket(lower=0.0, upper=upper, accountant=str(accountant))


SomeSteps = TypeVar("SomeSteps", bound=NoisySteps)


def calibrate_by(
    accountant: Accountant, mechanism: SomeSteps, *, target_epsilon: float, target_delta: float
) -> SomeSteps:
    """The least noise for a budget, as one accountant computes it (to a relative 1e-4).

    Guarantee: `epsilon_by` of the result is at most ``target_epsilon``.

    Raises:
        UseError: no noise multiplier up to 1e6 is enough, or the accountant knows no bound.
    """
    if accountant is Accountant.CONTOUR:
        return calibrate(mechanism, target_epsilon=target_epsilon, target_delta=target_delta)
    require_positive("target_epsilon", target_epsilon)

    def excess(noise: float) -> float:
        candidate = mechanism.with_noise_multiplier(noise)
        return epsilon_by(accountant, candidate, target_delta).upper - target_epsilon

    start = mechanism.noise_multiplier
    if accountant.lifts:
        # The least noise for the ε and δ that the lemma asks of one example (Algorithm 1, line 2):
        # its search costs a δ of one example in place of an ε of the group.
        mixture = _mixture(accountant, mechanism)
        example = mixture.of(1)
        start = group_privacy.calibrate_noise(
            lambda sigma, e: example.with_noise_multiplier(sigma).delta(e).upper,
            epsilon=target_epsilon,
            delta=target_delta,
            k=mixture.items,
            conversion=_LEMMAS[accountant],
        )
        while math.isfinite(start) and excess(start) > 0:  # ε has a rounding of its own
            start *= 1 + 1e-8
        noise = start if math.isfinite(start) else None
    else:
        noise = least(excess, start=start, most=1e6, smallest=1e-3, relative=1e-4)
    if noise is None:
        raise UseError(
            f"the accountant {accountant} finds no noise multiplier up to 1e6 within epsilon = "
            f"{epsilon_up(target_epsilon)} at delta = {delta_up(target_delta)}",
            hint="use the accountant contour, or raise the target epsilon",
        )
    return mechanism.with_noise_multiplier(noise)


def _mixture(accountant: Accountant, mechanism: NoisySteps) -> Mixture:
    if not isinstance(mechanism, Mixture):
        raise _no_bound(accountant, mechanism)
    return mechanism


def _no_bound(accountant: Accountant, mechanism: NoisySteps) -> UseError:
    return UseError(
        f"the accountant {accountant} has no bound for {type(mechanism).__name__}",
        hint="use the accountant contour",
    )
