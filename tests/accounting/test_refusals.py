"""Every number that the accounting takes has a range: what lies beyond it, NaN too, is refused."""

from __future__ import annotations

import math

import pytest

from userdp.accounting import (
    Accountant,
    binomial_steps,
    gaussian_steps,
    hypergeometric_steps,
    rdp,
)
from userdp.accounting.accountants import calibrate
from userdp.accounting.bracket import ideal_delta_for, implemented_epsilon
from userdp.accounting.filters import RenyiFilter
from userdp.accounting.group_privacy import example_target, group_epsilon, group_guarantee
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
ZERO = (*BAD, 0.0)
SHARE = (0.0, 1.0, -1e-5, NAN)
STEPS = {"sampling_probability": 0.1, "noise_multiplier": 1.0, "steps": 3}
ALL = {"noise_multiplier": 5.0, "steps": 3}
PRICED = [
    binomial_steps(**STEPS),
    hypergeometric_steps(batch_size=5, population=100, noise_multiplier=2.0, steps=10),
    gaussian_steps(**ALL),
]
TARGET = {"mechanism": PRICED[0], "target_delta": 1e-6}
MOMENT = {"order": 2.0, "sampling_probability": 0.1, "noise_multiplier": 1.0, "group_size": 1}
GROUP = {"epsilon": 1.0, "delta": 1e-6, "k": 2}
FILTER = {"epsilon": 8.0, "delta": 1e-6, "order": 4.0}
NUMBER = {"eta": 0.0, "gamma": 0.5}
IDEAL = {"epsilon": 1.0, "delta": 1e-5, "steps": 5}
CURVE = {"epsilons": (1.0,), "deltas": (0.0,)}
PURE = {"order": 2.0, "pure_epsilon": 0.1}
ROWS = [  # a function, arguments that it takes, the name of one, and values that it refuses there
    (binomial_steps, STEPS, "sampling_probability", ZERO),
    (binomial_steps, STEPS, "noise_multiplier", ZERO),
    (binomial_steps, STEPS, "group_size", ZERO),
    (gaussian_steps, ALL, "noise_multiplier", ZERO),
    (gaussian_steps, ALL, "shift", ZERO),
    *((calibrate, TARGET | {"accountant": one}, "target_epsilon", ZERO) for one in Accountant),
    (rdp.renyi_divergence, MOMENT, "sampling_probability", (NAN, 0.0)),
    (rdp.renyi_divergence, MOMENT, "noise_multiplier", (NAN, INF)),
    (rdp.renyi_divergence, MOMENT, "order", (NAN, 1.0)),
    (rdp.renyi_divergence, MOMENT, "group_size", (0,)),
    *((one, GROUP, "epsilon", BAD) for one in (group_guarantee, example_target)),
    *((one, GROUP, "delta", (NAN, 1.0)) for one in (group_guarantee, example_target)),
    *((one, GROUP, "k", (0,)) for one in (group_guarantee, example_target)),
    (RenyiFilter, FILTER, "epsilon", (NAN, 0.0, 90.0)),
    (RenyiFilter, FILTER, "delta", (NAN, 1.0)),
    (RenyiFilter, FILTER, "order", (NAN, 1.0)),
    (RenyiFilter, FILTER, "reserved", (NAN, 1.0)),
    (RenyiFilter, FILTER | {"order": 1.5}, "epsilon", (0.01,)),
    (ideal_delta_for, IDEAL, "delta", SHARE),
    (ideal_delta_for, IDEAL, "epsilon", (NAN,)),
    (implemented_epsilon, {"ideal": PRICED[2].epsilon, "steps": 5}, "delta", SHARE),
    (TruncatedNegativeBinomial, NUMBER, "eta", (-1.0, 1.5, NAN)),
    (TruncatedNegativeBinomial, NUMBER, "gamma", (0.0, NAN)),
    (TruncatedNegativeBinomial.of_mean, {"eta": 0.0}, "mean", (1.0,)),
    (PoissonNumber, {}, "mu", (INF,)),
    (pure_divergence, PURE, "order", (1.0,)),
    (pure_divergence, PURE, "pure_epsilon", (NAN,)),
    (base_curve, {"score_epsilon": 0.1}, "mechanisms", ([],)),
    (DeltaCurve, CURVE, "epsilons", ((), (1.0, 2.0), *((x,) for x in BAD))),
    (DeltaCurve, {"deltas": (0.1, 0.1)}, "epsilons", ((1.0, 1.0),)),
    (DeltaCurve, CURVE, "deltas", ((), (NAN,), (1.5,))),
    (DeltaCurve(**CURVE).max_true_positive_rate, {}, "false_positive_rate", (NAN, -0.1, 1.1)),
]


@pytest.mark.parametrize(
    ("function", "known", "name", "bad"),
    [
        pytest.param(function, known, name, bad, id=f"{function.__qualname__} {name}={bad}")
        for function, known, name, values in ROWS
        for bad in values
    ],
)
def test_invariant_8_numbers_out_of_range_are_refused(function, known, name, bad):
    with pytest.raises(ValueError):  # `UseError`, or of what only our own code hands over
        function(**known | {name: bad})


@pytest.mark.parametrize("bad", [NAN, -1e-9, 1.5])
def test_a_broken_curve_of_a_group_is_refused(bad):
    with pytest.raises(ValueError):
        group_epsilon(lambda epsilon: bad, 2, 1e-6)


@pytest.mark.parametrize("bad", ZERO)
def test_invariant_8_no_mechanism_is_asked_at_a_delta_or_epsilon_out_of_range(bad):
    for mechanism in PRICED:
        with pytest.raises(UseError, match="delta must be"):
            mechanism.epsilon(bad)
        if bad:
            with pytest.raises(UseError, match="epsilon must be"):
                mechanism.delta(bad)


@pytest.mark.filterwarnings("error")
def test_terms_that_no_double_holds_answer_in_another_way_without_a_warning():
    steps = binomial_steps(
        sampling_probability=1 / 12, group_size=2, noise_multiplier=0.315, steps=2
    )
    bracket = steps.delta(0.001)
    assert 0 < bracket.lower <= bracket.upper < 1
