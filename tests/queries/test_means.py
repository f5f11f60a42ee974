"""Private means: bounded, noisy as they should be, charged before they are drawn."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.data.corpora import corpus, prepared
from tests.ledgers import forget
from userdp.claims import claim
from userdp.errors import UseError
from userdp.ledger import StoreLedger
from userdp.queries import means as module
from userdp.queries import release_means
from userdp.queries.statistics import bounded_sum

pytest.importorskip("opendp", reason="the extra queries is not installed")
DRAWS = 2000
LOSSES = np.array([1.0, 2.5, 3.0, 3.5, 9.0, math.nan])


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return prepared(corpus(8), tmp_path_factory.mktemp("means") / "store", held_out_users=0)


@pytest.fixture
def store(made):
    forget(made.path)
    return made


def deviation(scale: float) -> float:
    q = math.exp(-1 / scale)
    return math.sqrt(2 * q) / (1 - q)


def draws(least: int, most: int, epsilon: float, held: list[int]) -> np.ndarray:
    asked = bounded_sum(least, most, epsilon=epsilon)
    return np.array([asked(held) for _ in range(DRAWS)])


@pytest.mark.slow
@pytest.mark.parametrize(("least", "most", "truth"), [(-3, 5, 4), (-7, 2, -3), (2, 9, 13)])
def test_a_sum_has_the_noise_of_its_largest_term(least, most, truth):
    held = [least - 5, 2, most + 3] if least < 0 else [0, 2, 50]
    assert sum(min(max(value, least), most) for value in held) == truth
    found = draws(least, most, 0.7, held)
    expected = deviation(max(abs(least), abs(most)) / 0.7)
    assert abs(found.mean() - truth) < 5 * expected / math.sqrt(DRAWS)
    assert 0.85 < found.std() / expected < 1.15


def test_half_the_noise_is_caught():
    """The twin of the test above."""
    found = draws(-3, 5, 1.4, [1, 2])
    assert not 0.85 < found.std() / deviation(5 / 0.7) < 1.15


def test_the_price_of_one_user_is_the_library_s_own():
    for epsilon in (0.1, 1.0, 3.0):
        assert 0.99 * epsilon < bounded_sum(-5, 4, epsilon=epsilon).map(1) <= epsilon


def test_the_mean_is_of_clamped_numbers_and_nearly_exact_without_noise(store):
    found = release_means(store, {"model": LOSSES}, bound=4.0, epsilon=600.0, subject="loss")
    clamped = np.array([1.0, 2.5, 3.0, 3.5, 4.0, 4.0])
    assert abs(found.means["model"].value - clamped.mean()) < 0.02  # false alarms: 4e-8
    assert found.users == 6
    assert found.means["model"].standard_error < 0.01


def test_the_standard_error_is_that_of_many_releases(store, monkeypatch):
    monkeypatch.setattr(StoreLedger, "query", lambda *arguments, **options: None)
    monkeypatch.setattr(StoreLedger, "answer", lambda *arguments, **options: None)
    many = np.repeat([1.0, 2.0, 3.5], 400)
    found = [
        release_means(store, {"m": many}, bound=8.0, epsilon=1.0, subject="loss").means["m"]
        for _ in range(120)
    ]
    values = np.array([mean.value for mean in found])
    stated = np.mean([mean.standard_error for mean in found])
    assert 0.75 < values.std() / stated < 1.3
    assert abs(values.mean() - many.mean()) < 5 * stated / math.sqrt(len(found))


def test_all_parts_are_charged_before_one_is_drawn(store, monkeypatch):
    def crash(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "bounded_sum", lambda *bounds, epsilon: crash)
    values = {"model": LOSSES, "base": LOSSES + 1}
    with pytest.raises(KeyboardInterrupt):
        release_means(store, values, bound=4.0, epsilon=0.8, subject="loss")
    charges = StoreLedger(store.path).charges()
    assert [charge.query_name for charge in charges] == [
        "sum of model loss", "sum of base loss", "users of loss",
    ]  # fmt: skip
    assert claim(store.path).guarantee.epsilon == pytest.approx(0.8, rel=1e-12)


def test_the_answers_stand_in_the_ledger(store):
    found = release_means(store, {"model": LOSSES}, bound=4.0, epsilon=0.5, subject="loss")
    charges = StoreLedger(store.path).charges()
    assert [charge.run_id for charge in charges] == list(found.query_ids)
    assert max(0, charges[-1].answer) == found.users
    assert claim(store.path).guarantee.epsilon == pytest.approx(0.5, rel=1e-12)


def test_nobody_at_all_is_answered_too(store):
    """An error in place of an answer would tell that nobody was there."""
    found = release_means(store, {"m": np.array([])}, bound=4.0, epsilon=5.0, subject="loss")
    assert 0 <= found.means["m"].value <= 4


@pytest.mark.parametrize(
    "changes", [{"epsilon": 0.0}, {"epsilon": math.nan}, {"bound": math.inf}, {"bound": -1.0}]
)
def test_what_is_out_of_range_is_refused_and_charges_nothing(store, changes):
    options = {"bound": 4.0, "epsilon": 1.0, **changes}
    with pytest.raises(UseError):
        release_means(store, {"m": LOSSES}, subject="loss", **options)
    with pytest.raises(UseError, match="as many"):
        release_means(store, {"m": LOSSES, "n": LOSSES[1:]}, bound=1.0, epsilon=1.0, subject="x")
    assert StoreLedger(store.path).charges() == []
