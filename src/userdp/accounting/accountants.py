"""The accountants by name: ours, and the second opinions beside it."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

from userdp.accounting import group_privacy, rdp
from userdp.accounting.bracket import Bracket
from userdp.accounting.calibration import calibrate
from userdp.accounting.mechanisms import (
    FixedBatchExamples,
    FixedBatchUsers,
    FixedGraphExamples,
    PoissonExamples,
    PoissonUsers,
    SampledMechanism,
)
from userdp.errors import UseError
from userdp.guarantees import delta_up, require_delta, require_positive


class Accountant(StrEnum):
    """Who answers.

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


_LEMMAS = {
    Accountant.GROUP_PRIVACY: group_privacy.Conversion.BEST,
    Accountant.GROUP_PRIVACY_VADHAN: group_privacy.Conversion.VADHAN,
}


def epsilon_by(
    accountant: Accountant, mechanism: SampledMechanism | FixedGraphExamples, delta: float
) -> Bracket:
    """ε of a mechanism at ``delta``, in the words of one accountant.

    Guarantee: ``upper`` is an upper bound (for dp-accounting up to its own round-off of about
    1e-13 in δ). ``lower`` is 0 for all but ``contour``.

    Raises:
        UseError: this accountant knows no bound for this mechanism.
        FailureError: the library dp-accounting is not installed.
    """
    require_delta(delta)
    if accountant is Accountant.CONTOUR:
        return mechanism.epsilon(delta)
    if isinstance(mechanism, FixedGraphExamples):
        raise _no_bound(accountant, mechanism)
    if accountant is Accountant.DP_ACCOUNTING:
        from userdp.accounting import dp_accounting_backend

        return dp_accounting_backend.epsilon(mechanism.dp_event(), delta)
    if accountant is Accountant.RDP:
        if not isinstance(mechanism, PoissonUsers | PoissonExamples):
            raise _no_bound(accountant, mechanism)
        return rdp.epsilon(
            delta,
            sampling_probability=mechanism.sampling_probability,
            noise_multiplier=mechanism.noise_multiplier,
            group_size=mechanism.group_size if isinstance(mechanism, PoissonExamples) else 1,
            steps=mechanism.steps,
        )
    example, group = _per_example(mechanism)
    upper = group_privacy.group_epsilon(
        lambda epsilon: example.delta(epsilon).upper, group, delta, _LEMMAS[accountant]
    )
    return Bracket(lower=0.0, upper=upper, accountant=str(accountant))


SomeMechanism = TypeVar("SomeMechanism", bound=SampledMechanism)


def calibrate_by(
    accountant: Accountant, mechanism: SomeMechanism, *, target_epsilon: float, target_delta: float
) -> SomeMechanism:
    """The least noise for a budget, in the words of one accountant (to a relative 1e-3).

    Guarantee: `epsilon_by` of the result is at most ``target_epsilon``.

    Raises:
        UseError: no noise multiplier up to 1e6 is enough, or the accountant knows no bound.
    """
    if accountant is Accountant.CONTOUR:
        return calibrate(mechanism, target_epsilon=target_epsilon, target_delta=target_delta)
    require_positive("target_epsilon", target_epsilon)

    def within(noise: float) -> bool:
        candidate = mechanism.with_noise_multiplier(noise)
        return epsilon_by(accountant, candidate, target_delta).upper <= target_epsilon

    if accountant in _LEMMAS:
        noise = _group_noise(accountant, mechanism, target_epsilon, target_delta)
        while noise is not None and not within(noise):  # ε has a rounding of its own
            noise *= 1 + 1e-6
    else:
        noise = _least(within, start=mechanism.noise_multiplier)
    if noise is None:
        raise UseError(
            f"the accountant {accountant} finds no noise multiplier up to 1e6 within epsilon = "
            f"{target_epsilon:g} at delta = {delta_up(target_delta)}",
            hint="use the accountant contour, or raise the target epsilon",
        )
    return mechanism.with_noise_multiplier(noise)


def _group_noise(
    accountant: Accountant, mechanism: SampledMechanism, epsilon: float, delta: float
) -> float | None:
    """The least noise by a lemma: of the ε and δ it asks of one example (Algorithm 1, line 2)."""
    example, group = _per_example(mechanism)
    noise = group_privacy.calibrate_noise(
        lambda sigma, e: example.with_noise_multiplier(sigma).delta(e).upper,
        epsilon=epsilon,
        delta=delta,
        k=group,
        conversion=_LEMMAS[accountant],
    )
    return None if math.isinf(noise) else noise


def _least(within: Callable[[float], bool], *, start: float) -> float | None:
    """The least noise for which ``within`` holds, to a relative 1e-3, on its right side."""
    high = start
    while not within(high):
        high *= 2
        if high > 1e6:
            return None
    low = high / 2
    while low > 1e-3 and within(low):
        high, low = low, low / 2
    while high > low * (1 + 1e-3):
        middle = math.sqrt(low * high)
        if within(middle):
            high = middle
        else:
            low = middle
    return high


def _per_example(mechanism: SampledMechanism) -> tuple[SampledMechanism, int]:
    """The mechanism for a user of one example, and the size of the group to lift it to."""
    if isinstance(mechanism, PoissonExamples):
        single: SampledMechanism = PoissonUsers(
            sampling_probability=mechanism.sampling_probability,
            noise_multiplier=mechanism.noise_multiplier,
            steps=mechanism.steps,
        )
        return single, mechanism.group_size
    if isinstance(mechanism, FixedBatchExamples):
        single = FixedBatchUsers(
            cohort_size=mechanism.batch_size,
            population=mechanism.population,
            noise_multiplier=mechanism.noise_multiplier,
            steps=mechanism.steps,
        )
        return single, mechanism.group_size
    return mechanism, 1


def _no_bound(accountant: Accountant, mechanism: SampledMechanism | FixedGraphExamples) -> UseError:
    return UseError(
        f"the accountant {accountant} has no bound for {type(mechanism).__name__}",
        hint="use the accountant contour",
    )
