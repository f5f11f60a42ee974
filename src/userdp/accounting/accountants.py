"""The accountants by name, ours and the second opinions: ε, and the least noise for a budget."""

from __future__ import annotations

import math
from enum import StrEnum
from functools import lru_cache
from typing import TypeVar

from userdp.accounting import group_privacy, rdp
from userdp.accounting.bracket import Bracket
from userdp.accounting.certified_search import least
from userdp.accounting.mechanisms import Mixture, NoisySteps
from userdp.core.environment import library
from userdp.core.errors import FailureError, UseError, kind_of
from userdp.core.vocabulary import delta_up, epsilon_up, require_delta, require_positive

SomeSteps = TypeVar("SomeSteps", bound=NoisySteps)


class Accountant(StrEnum):
    """Names the accountant that computes an ε.

    ``CONTOUR``: ours; certified bounds of the exact answer (docs/accounting.md).
    ``DP_ACCOUNTING``: the PLD accountant of the library dp-accounting, a second opinion of others,
    thousands of times slower. Its FFT leaves errors near 1e-14 in δ: trusted to ±1e-13 there.
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
    if accountant is Accountant.RDP:
        upper = rdp.epsilon_of_curve(rdp.step_curve(mechanism), delta)
        note = "an upper bound only: the best Rényi order"
        return Bracket(lower=0.0, upper=upper, accountant=str(accountant), note=note)
    mixture = _mixture(accountant, mechanism)
    if accountant is Accountant.DP_ACCOUNTING:
        return by_dp_accounting(mixture, delta)
    example = mixture.of(1)
    upper = group_privacy.group_epsilon(
        lambda epsilon: example.delta(epsilon).upper, mixture.law.items, delta, _LEMMAS[accountant]
    )
    return Bracket(lower=0.0, upper=upper, accountant=str(accountant))


def calibrate(
    mechanism: SomeSteps,
    *,
    target_epsilon: float,
    target_delta: float,
    accountant: Accountant = Accountant.CONTOUR,
    tolerance: float = 1e-6,
) -> SomeSteps:
    """The mechanism with the least noise that stays within (``target_epsilon``, ``target_delta``).

    Guarantee: `epsilon_by` of the returned mechanism is at most ``target_epsilon``; its noise
    multiplier exceeds the least such one by a factor of about ``1 + tolerance`` at most (1e-4 for
    the accountants that search in ε).

    Args:
        mechanism: anything with the wanted sampling and steps; the search starts at its noise.
        target_epsilon: > 0.
        target_delta: in (0, 1).
        accountant: which one computes ε.
        tolerance: relative width at which the search stops; in (0, 0.1].

    Raises:
        UseError: no noise multiplier up to 1e6 meets the budget, or the accountant knows no bound.

    >>> from userdp.accounting.mechanisms import binomial_steps
    >>> steps = binomial_steps(sampling_probability=0.01, noise_multiplier=2.0, steps=2000)
    >>> noisier = calibrate(steps, target_epsilon=2.9552459, target_delta=1e-6)
    >>> print(f"{noisier.noise_multiplier:.5f}")
    1.00000
    """
    require_positive("epsilon", target_epsilon)
    require_positive("tolerance", tolerance, at_most=0.1)
    require_delta(target_delta)

    def epsilon(noise: float) -> float:
        candidate = mechanism.with_noise_multiplier(noise)
        return epsilon_by(accountant, candidate, target_delta).upper

    if accountant is Accountant.CONTOUR:
        noise = _noise_for_delta(mechanism, target_epsilon, target_delta, tolerance)
    elif accountant.lifts:
        # The least noise for the ε and δ that the lemma asks of one example (Algorithm 1, line 2):
        # its search costs a δ of one example in place of an ε of the group.
        tolerance = 1e-8
        mixture = _mixture(accountant, mechanism)
        target = group_privacy.example_target(
            target_epsilon, target_delta, mixture.law.items, _LEMMAS[accountant]
        )
        example = mixture.of(1).with_noise_multiplier(1.0)
        noise = _noise_for_delta(example, *target, 1e-9, smallest=1e-6) if target.delta else None
    else:
        noise = least(
            lambda noise: epsilon(noise) - target_epsilon,
            start=mechanism.noise_multiplier,
            most=1e6,
            smallest=1e-3,
            relative=1e-4,
        )
    if noise is None:
        raise UseError(
            f"the accountant {accountant} finds no noise multiplier up to 1e6 within epsilon = "
            f"{epsilon_up(target_epsilon)} at delta = {delta_up(target_delta)}, so no plan can "
            "promise it",
            hint="raise the target epsilon, or lower the steps or the sampling probability",
        )
    # δ within budget at ε does not quite give an ε within budget: that has a width of its own.
    while not epsilon(noise) <= target_epsilon:
        noise *= 1 + tolerance
    return mechanism.with_noise_multiplier(noise)


def _noise_for_delta(
    mechanism: NoisySteps, epsilon: float, delta: float, tolerance: float, smallest: float = 1e-3
) -> float | None:
    """The least noise at which δ(``epsilon``) is at most ``delta``; None beyond 1e6."""

    def excess(noise: float) -> float:
        """log(δ / target): nearly straight in the noise, so that few evaluations are needed."""
        found = mechanism.with_noise_multiplier(noise).delta(epsilon).upper
        log_ratio = math.log(max(found, 1e-300) / delta)
        # The sign is that of δ - target, whatever the logarithm's rounding makes of it.
        return max(log_ratio, 5e-324) if found > delta else min(log_ratio, 0.0)

    start = mechanism.noise_multiplier
    return least(excess, start=start, most=1e6, smallest=smallest, relative=tolerance)


def by_dp_accounting(mixture: Mixture, delta: float, *, grid: float = 1e-4) -> Bracket:
    """ε by the mixture-of-Gaussians accountant of dp-accounting (Charles et al. 2024, A.1.1).

    Args:
        mixture: the steps.
        delta: in (0, 1).
        grid: of the privacy loss; ten times as wide, it takes a tenth of the time and bounds ε to
            three digits.

    Raises:
        FailureError: the library answered NaN, failed, or is not installed.
    """
    library("dp_accounting.pld", extra="dp-accounting", what="this accountant")
    dp_accounting = library("dp_accounting", extra="dp-accounting", what="this accountant")
    law = mixture.pair().law  # its shifts are in noise standard deviations
    weights = [math.exp(value) for value in law.w]
    total = math.fsum(weights)
    single = dp_accounting.dp_event.MixtureOfGaussiansDpEvent(
        1.0, law.a.tolist(), [weight / total for weight in weights]
    )
    accountant = dp_accounting.pld.PLDAccountant(value_discretization_interval=grid)
    hint = "price it with --accountant contour, which answers for every mechanism"
    try:
        accountant.compose(dp_accounting.dp_event.SelfComposedDpEvent(single, mixture.steps))
        upper = accountant.get_epsilon(delta)
    except Exception as error:  # its grids have no room for little noise, which it says variously
        raise FailureError(
            f"dp-accounting cannot price this mechanism ({kind_of(error)})", hint=hint
        ) from error
    if math.isnan(upper):
        raise FailureError("dp-accounting answered NaN: no bound can be claimed", hint=hint)
    return Bracket(lower=0.0, upper=max(0.0, float(upper)), accountant="dp-accounting")


def _mixture(accountant: Accountant, mechanism: NoisySteps) -> Mixture:
    if not isinstance(mechanism, Mixture):
        raise UseError(
            f"the accountant {accountant} has no bound for {type(mechanism).__name__}",
            hint="use the accountant contour",
        )
    return mechanism
