"""The prices of federations against independent oracles, and the published ones to the letter."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from papers.published import FLAWS, paper_noise
from tests.federated.toys import PRIVATE, constants, plan
from userdp.accounting import binomial_steps
from userdp.core.codec import decode, encode
from userdp.core.errors import UseError
from userdp.core.vocabulary import PrivacyUnit
from userdp.federated.algorithms import ALGORITHMS
from userdp.federated.federation_plan import FederationPlan


def subject_mechanism(sigma, **constants):
    """What prices the local steps of a silo for a subject."""
    return plan(sigma, **constants).local.mechanism


def one_step_delta(shifts, weights, sigma, epsilon):
    """δ(ε) of one step, both directions, by plain quadrature: N(shift) against N(0)."""
    x = np.linspace(-12 * sigma, max(shifts) + 12 * sigma, 400_001)
    q = sum(w * stats.norm.pdf(x, s, sigma) for s, w in zip(shifts, weights, strict=True))
    p, width = stats.norm.pdf(x, 0, sigma), x[1] - x[0]
    return max(
        width * np.maximum(q - math.exp(epsilon) * p, 0).sum(),
        width * np.maximum(p - math.exp(epsilon) * q, 0).sum(),
    )


def mixture(algorithm, p, k):
    if algorithm in ("local-item-dp", "local-group-dp"):
        return list(range(k + 1)), stats.binom.pmf(range(k + 1), k, p)
    q = 1 - (1 - p) ** k
    return [0, 2 if algorithm == "user-ldp" else 1], [1 - q, q]


@pytest.mark.parametrize("algorithm", PRIVATE)
def test_one_step_is_the_mixture_of_the_table_by_quadrature(algorithm):
    p, k, sigma = 0.2, 3, 1.3
    mechanism = subject_mechanism(
        sigma, algorithm=algorithm, sampling_probability=p, group_size=k, local_steps=1
    )
    for epsilon in (0.1, 1.0, 2.0):
        truth = one_step_delta(*mixture(algorithm, p, k), sigma, epsilon)
        assert mechanism.delta(epsilon).upper == pytest.approx(truth, rel=1e-5, abs=1e-12)


def test_a_silo_replaced_whole_is_a_gaussian_of_mu_2_root_steps_over_sigma():
    made = plan(7.0, algorithm="user-ldp", rounds=20)
    (whole,) = [g for g in made.guarantees() if g.unit is PrivacyUnit.SILO]
    mu = 2 * math.sqrt(made.most_local_steps) / 7.0
    low, high = -mu / 2 - whole.epsilon / mu, mu / 2 - whole.epsilon / mu
    truth = stats.norm.cdf(high) - math.exp(whole.epsilon) * stats.norm.cdf(low)
    assert truth == pytest.approx(1e-5, rel=1e-6)


@pytest.mark.parametrize("algorithm", list(ALGORITHMS))
def test_calibrated_noise_is_the_least_within_the_budget_and_its_plan_survives_json(algorithm):
    made = FederationPlan.calibrated(**constants(algorithm=algorithm))
    unit = PrivacyUnit.LONE_ITEM if algorithm == "local-item-dp" else PrivacyUnit.SUBJECT
    (claim,) = [g for g in made.guarantees() if g.unit is unit]
    assert 3.999 < claim.epsilon <= 4.0 or (algorithm, claim.epsilon) == ("fedavg", math.inf)
    read = decode(FederationPlan, encode(made), what="a plan")
    assert (read, read.digest) == (made, made.digest)
    assert made.digest != replace(made, rounds=3).digest


def test_horizontal_composition_charges_every_silo_that_may_hold_the_subject():
    one, all_ = plan(silos_per_subject=1), plan(silos_per_subject=3)
    assert (one.charged_steps, all_.charged_steps) == (4, 12)
    assert all_.guarantee().epsilon > one.guarantee().epsilon
    twelve = binomial_steps(sampling_probability=0.25, group_size=3, noise_multiplier=1.0, steps=12)
    assert all_.guarantee().epsilon == pytest.approx(twelve.epsilon(1e-5).upper, rel=1e-12)
    made, same = (plan(silos=10, silos_per_round=3, silos_per_subject=5, rounds=40) for _ in "ab")
    for number in range(1, 41):
        assert len(set(made.schedule(number))) == 3
        assert made.schedule(number) == same.schedule(number)
    assert sum(made.rounds_of_silos) == 120
    assert made.charged_steps <= 2 * 40 * min(3, 5)
    # Who runs is no secret of the server's, so that sampling 3 of 10 silos amplifies nothing.
    one = replace(made, silos_per_subject=1)
    assert one.charged_steps == 2 * max(one.rounds_of_silos) > 2 * 40 * 3 / 10
    with pytest.raises(UseError):
        made.schedule(41)


@pytest.mark.parametrize(("algorithm", "flaw"), [("local-group-dp", "b"), ("user-ldp", "e")])
def test_broken_twin_published_noise_is_caught_by_the_sound_price(algorithm, flaw):
    """The paper's noise, run under sound conditions, costs more than its promised ε = 4."""
    assert flaw in FLAWS[algorithm]
    sigma = paper_noise(
        algorithm,
        batch_fraction=0.05,
        group_size=2,  # the mini-batch's largest group; the data set's is 20
        steps=200,
        target_epsilon=4.0,
        target_delta=1e-5,
    )
    sound = subject_mechanism(
        sigma, algorithm=algorithm, sampling_probability=0.05, group_size=20, local_steps=200
    )
    assert sound.epsilon(1e-5).lower > 4.5


@pytest.mark.parametrize(
    ("name", "value"),
    [("batch_size", math.nan), ("l2_clip_norm", math.nan), ("silos_per_round", 4),
     ("silos_per_subject", 0), ("rounds", 0), ("group_size", 0), ("target_delta", 1.0),
     ("algorithm", "sgd"), ("learning_rate", math.inf)],
)  # fmt: skip
def test_bad_plans_are_refused(name, value):
    with pytest.raises(UseError):
        FederationPlan.calibrated(**constants(**{name: value}))


def test_an_algorithms_name_and_its_steps_belong_together():
    """A plan of cheap steps under the name of others would be run as those."""
    for one, other in (("higradavg-dp", "local-group-dp"), ("fedavg", "user-ldp")):
        with pytest.raises(UseError, match="not one of the algorithm"):
            replace(plan(algorithm=one), local=plan(algorithm=other).local)
