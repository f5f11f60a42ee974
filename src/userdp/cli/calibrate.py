"""``userdp calibrate``: the least noise for a budget."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from userdp.cli.account import priced_answer
from userdp.cli.mechanism_options import (
    AccountantName,
    MechanismOptions,
    build_mechanism,
    judge_delta,
)
from userdp.cli.output import Answer


def calibrate(
    *,
    options: Annotated[MechanismOptions | None, Parameter(name="*", group="Mechanism")] = None,
    epsilon: float,
    delta: float,
    accountant: AccountantName = "contour",
    allow_large_delta: bool = False,
) -> Answer:
    """Find the least noise multiplier whose epsilon stays within the budget.

    The mechanism is priced with exact Gaussian noise, see `userdp account`.

    Args:
        options: see MechanismOptions.
        epsilon: the budget; greater than 0.
        delta: in (0, 1).
        accountant: contour (certified, exact), or a second opinion.
        allow_large_delta: where --population is given, answer even if delta is not below 1 over it.
    """
    options = options or MechanismOptions()
    described = build_mechanism(options)
    judge_delta(
        delta,
        options.least_population,
        sampling=described.sampling,
        allow_large_delta=allow_large_delta,
    )
    from userdp.accounting.accountants import Accountant, calibrate_by, epsilon_by

    chosen = Accountant(accountant)
    mechanism = calibrate_by(
        chosen, described.priced(1.0), target_epsilon=epsilon, target_delta=delta
    )
    bracket = epsilon_by(chosen, mechanism, delta)
    return priced_answer(
        {
            "noise_multiplier": mechanism.noise_multiplier,
            "epsilon": bracket.upper,
            "target_epsilon": epsilon,
            "delta": delta,
            **described.to_dict(mechanism.noise_multiplier),
            "accountant": bracket.accountant,
        }
    )
