import math

import numpy as np
import pytest
from scipy import stats

from userdp.core.errors import UseError
from userdp.sampling import draws as module
from userdp.sampling.draws import distinct_indices, poisson_indices, secret_generator

P_VALUE = 1e-4  # fixed in advance; the seeds below are fixed too, so that no test flickers


def set_frequencies(draw, population, trials):
    """Counts of each of the 2^population possible sets."""
    weights = 1 << np.arange(population)
    return np.bincount([int(weights[draw()].sum()) for _ in range(trials)], minlength=2**population)


def coins(population, probability):
    """Probability of each set under independent coins."""
    sizes = np.array([bin(s).count("1") for s in range(2**population)])
    return probability**sizes * (1 - probability) ** (population - sizes)


def chi_square_p(observed, expected_probabilities):
    return stats.chisquare(observed, expected_probabilities * observed.sum()).pvalue


@pytest.mark.parametrize("probability", [0.1, 0.4, 0.9])
@pytest.mark.pitfall(number=2)
def test_invariant_2_every_set_has_the_probability_of_independent_coins(probability):
    generator = secret_generator(unsafe_seed=1)
    observed = set_frequencies(lambda: poisson_indices(generator, 4, probability), 4, 20_000)
    assert chi_square_p(observed, coins(4, probability)) > P_VALUE


def fixed_size(generator, population, probability):
    return generator.choice(population, round(population * probability), replace=False)


def padded_by_repeating(generator, population, probability):
    drawn = np.flatnonzero(generator.random(population) < probability)
    return drawn if len(drawn) else generator.integers(population, size=1)


def coarse_count(generator, population, probability):
    count = generator.poisson(population * probability)
    return generator.permutation(population)[: min(count, population)]


@pytest.mark.parametrize("broken", [fixed_size, padded_by_repeating, coarse_count])
def test_broken_twins_of_invariant_2_are_caught_by_the_chi_square_test(broken):
    rng = secret_generator(unsafe_seed=2)
    observed = set_frequencies(lambda: broken(rng, 4, 0.4), 4, 20_000)
    assert chi_square_p(observed, coins(4, 0.4)) < P_VALUE


def test_every_set_of_distinct_indices_is_equally_likely():
    generator = secret_generator(unsafe_seed=3)
    observed = set_frequencies(lambda: distinct_indices(generator, 6, 2), 6, 6_000)
    pairs = observed[observed > 0]
    assert len(pairs) == math.comb(6, 2)
    assert stats.chisquare(pairs).pvalue > P_VALUE


@pytest.mark.parametrize(("population", "count"), [(40, 3), (100_000, 3)])
def test_distinct_indices_are_distinct_and_uniform(population, count):
    generator = secret_generator(unsafe_seed=3)
    drawn = np.array([distinct_indices(generator, population, count) for _ in range(6_000)])
    assert all(len(set(row)) == count for row in drawn.tolist())
    assert stats.chisquare(np.histogram(drawn, bins=20, range=(0, population))[0]).pvalue > P_VALUE


@pytest.mark.parametrize(("population", "probability"), [(-1, 0.1), (5, 0.0), (5, float("nan"))])
def test_bad_parameters_are_refused(population, probability):
    with pytest.raises(UseError):
        poisson_indices(secret_generator(unsafe_seed=6), population, probability)


def bits_of_pool() -> int:
    """In which the seed of a generator is mixed; NumPy's default is 128, whatever the seed has."""
    return 32 * secret_generator().bit_generator.seed_seq.pool_size


def test_invariant_4_all_256_bits_of_a_seed_decide_the_draws():
    """Bits above the 128th too: with a smaller pool 2^256 seeds would share 2^128 states."""
    streams = {
        tuple(secret_generator(1 << bit).integers(2**63, size=4).tolist()) for bit in range(256)
    }
    assert len(streams) == bits_of_pool() == 256


def test_invariant_4_twin_a_pool_of_numpys_default_size_is_caught(monkeypatch):
    monkeypatch.setattr(module, "_POOL_WORDS", 4)
    assert bits_of_pool() == 128
