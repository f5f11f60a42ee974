"""Every number that the accounting takes has a range: what lies beyond it, NaN too, is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from userdp.accounting import (
    Accountant,
    binomial_steps,
    gaussian_steps,
    hypergeometric_steps,
    rdp,
)
from userdp.accounting.accountants import calibrate
from userdp.accounting.filters import RenyiFilter
from userdp.accounting.group_privacy import example_target, group_epsilon, group_guarantee
from userdp.accounting.implemented import ideal_delta_for, implemented_epsilon
from userdp.accounting.private_selection import (
    PoissonNumber,
    TruncatedNegativeBinomial,
    base_curve,
    pure_divergence,
)
from userdp.accounting.tradeoff import DeltaCurve
from userdp.core.errors import UseError

NAN, INF = math.nan, math.inf
BAD = (NAN, INF, -1.0)
STEPS: dict[str, Any] = {"sampling_probability": 0.1, "noise_multiplier": 1.0, "steps": 3}
PRICED = [
    binomial_steps(**STEPS),
    hypergeometric_steps(batch_size=5, population=100, noise_multiplier=2.0, steps=10),
    gaussian_steps(noise_multiplier=5.0, steps=3),
]
GROUPS = (*((x, 1e-6, 2) for x in BAD), (1.0, NAN, 2), (1.0, 1.0, 2), (1.0, 1e-6, 0))
FILTER = {"epsilon": 8.0, "delta": 1e-6, "order": 4.0}
MOMENT: dict[str, Any] = {"sampling_probability": 0.1, "noise_multiplier": 1.0, "group_size": 1}


def binomial(**change: Any) -> object:
    return binomial_steps(**STEPS | change)


def calibrated(bad: float, accountant: Accountant) -> object:
    return calibrate(PRICED[0], target_epsilon=bad, target_delta=1e-6, accountant=accountant)


def moment(**change: Any) -> object:
    return rdp.renyi_divergence(change.pop("order", 2.0), **MOMENT | change)


def curve(**points: Any) -> object:
    return DeltaCurve(**{"epsilons": (1.0,), "deltas": (0.0,), **points})


REFUSED: dict[str, tuple[Callable[[Any], object], tuple[Any, ...]]] = {
    "sampling probability": (lambda bad: binomial(sampling_probability=bad), (*BAD, 0.0)),
    "noise": (lambda bad: binomial(noise_multiplier=bad), (*BAD, 0.0)),
    "group size": (lambda bad: binomial(group_size=bad), (*BAD, 0.0)),
    "noise of all": (lambda bad: gaussian_steps(noise_multiplier=bad, steps=1), (*BAD, 0.0)),
    "shift": (lambda bad: gaussian_steps(shift=bad, noise_multiplier=1, steps=1), (*BAD, 0.0)),
    **{
        f"target of {one}": (partial(calibrated, accountant=one), (*BAD, 0.0)) for one in Accountant
    },
    "moment": (
        lambda bad: moment(**bad),
        (
            *({"sampling_probability": x} for x in (NAN, 0.0)),
            *({"noise_multiplier": x} for x in (NAN, INF)),
            *({"order": x} for x in (NAN, 1.0)),
            {"group_size": 0},
        ),
    ),
    "group": (lambda bad: group_guarantee(*bad), GROUPS),
    "target of a group": (lambda bad: example_target(*bad), GROUPS),
    "broken curve": (lambda bad: group_epsilon(lambda e: bad, 2, 1e-6), (NAN, -1e-9, 1.5)),
    "filter": (
        lambda bad: RenyiFilter(**{**FILTER, **bad}),
        (
            *({"epsilon": x} for x in (NAN, 0.0, 90.0)),
            *({"delta": x} for x in (NAN, 1.0)),
            *({"order": x} for x in (NAN, 1.0)),
            *({"reserved": x} for x in (NAN, 1.0)),
            {"epsilon": 0.01, "order": 1.5},
        ),
    ),
    "delta of what runs": (lambda bad: ideal_delta_for(1.0, bad, steps=5), (0.0, 1.0, -1e-5, NAN)),
    "epsilon of what runs": (
        lambda bad: implemented_epsilon(PRICED[2].epsilon, bad, steps=5),
        (0.0, 1.0, -1e-5, NAN),
    ),
    "epsilon of a delta": (lambda bad: ideal_delta_for(bad, 1e-5, steps=5), (NAN,)),
    "number of candidates": (
        lambda bad: TruncatedNegativeBinomial(**bad),
        (
            *({"eta": x, "gamma": 0.5} for x in (-1.0, 1.5, NAN)),
            *({"eta": 0.0, "gamma": x} for x in (0.0, NAN)),
        ),
    ),
    "mean of candidates": (lambda bad: TruncatedNegativeBinomial.of_mean(bad, eta=0.0), (1.0,)),
    "Poisson candidates": (lambda bad: PoissonNumber(mu=bad), (INF,)),
    "pure answer": (lambda bad: pure_divergence(*bad), ((1.0, 0.5), (2.0, NAN))),
    "no candidate": (lambda bad: base_curve(bad, score_epsilon=0.1), ([],)),
    "points of a curve": (
        lambda bad: curve(**bad),
        (
            {"epsilons": (), "deltas": ()},
            {"deltas": ()},
            {"epsilons": (1.0, 1.0), "deltas": (0.1, 0.1)},
            *({"epsilons": (x,)} for x in BAD),
            *({"deltas": (x,)} for x in (NAN, 1.5)),
        ),
    ),
    "false positive rate": (
        lambda bad: DeltaCurve(epsilons=(1.0,), deltas=(0.0,)).max_true_positive_rate(bad),
        (NAN, -0.1, 1.1),
    ),
}


@pytest.mark.parametrize(
    ("kind", "bad"), [(kind, bad) for kind, (_, values) in REFUSED.items() for bad in values]
)
def test_invariant_8_numbers_out_of_range_are_refused(kind, bad):
    with pytest.raises(ValueError):  # `UseError`, or of what only our own code hands over
        REFUSED[kind][0](bad)


@pytest.mark.parametrize("bad", [*BAD, 0.0])
def test_invariant_8_no_mechanism_is_asked_at_a_delta_or_epsilon_out_of_range(bad):
    for mechanism in PRICED:
        with pytest.raises(UseError, match="delta must be"):
            mechanism.epsilon(bad)
        if bad:
            with pytest.raises(UseError, match="epsilon must be"):
                mechanism.delta(bad)
