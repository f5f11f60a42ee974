import numpy as np
import pytest
from scipy import stats

from userdp.core.errors import UseError
from userdp.sampling import coins as module
from userdp.sampling.coins import distinct_indices, poisson_indices, secret_generator

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
    generator = secret_generator(unsafe_seed=2)
    observed = set_frequencies(lambda: broken(generator, 4, 0.4), 4, 20_000)
    assert chi_square_p(observed, coins(4, 0.4)) < P_VALUE


@pytest.mark.parametrize(("population", "count"), [(6, 2), (40, 3), (100_000, 3)])
def test_distinct_indices_are_distinct_and_uniform(population, count):
    generator = secret_generator(unsafe_seed=3)
    drawn = np.array([distinct_indices(generator, population, count) for _ in range(6_000)])
    assert all(len(set(row)) == count for row in drawn.tolist())
    observed = np.histogram(drawn, bins=min(population, 20), range=(0, population))[0]
    assert stats.chisquare(observed).pvalue > P_VALUE


@pytest.mark.parametrize(("population", "probability"), [(-1, 0.1), (5, 0.0), (5, float("nan"))])
def test_bad_parameters_are_refused(population, probability):
    with pytest.raises(UseError):
        poisson_indices(secret_generator(unsafe_seed=6), population, probability)


def test_invariant_4_all_256_bits_of_a_seed_decide_the_draws(monkeypatch):
    """Bits above the 128th too: and the pool that they are mixed in holds as many as a seed.

    NumPy's default pool is 128 bits, so that 2^256 seeds would share 2^128 states.
    """
    streams = {
        tuple(secret_generator(1 << bit).integers(2**63, size=4).tolist()) for bit in range(256)
    }
    assert len(streams) == 256
    seen = pools(monkeypatch)
    secret_generator()
    assert seen == [256]


def test_invariant_4_twin_a_pool_of_numpys_default_size_is_caught(monkeypatch):
    monkeypatch.setattr(module, "_POOL_WORDS", 4)
    seen = pools(monkeypatch)
    secret_generator()
    assert seen == [128]


def pools(monkeypatch) -> list[int]:
    """The bits that each seed sequence holds from now on; filled as they are made."""
    seen: list[int] = []
    honest = np.random.SeedSequence

    def watched(*arguments, **options):
        made = honest(*arguments, **options)
        seen.append(32 * len(made.pool))
        return made

    monkeypatch.setattr(np.random, "SeedSequence", watched)
    return seen
