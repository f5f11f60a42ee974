"""A model's mean loss and its difference to another's under DP: bounded, priced, sharp."""

from __future__ import annotations

import math

import numpy as np
import pytest

from userdp.claims import claim
from userdp.core.errors import UseError
from userdp.ledger import StoreLedger
from userdp.queries import comparison as module
from userdp.queries import release_losses
from userdp.queries.comparison import STEPS, to_steps

LOSSES = np.array([1.0, 2.5, 3.0, 3.5, 9.0, math.nan])


def losses(store, model, base=None, **changes):
    options = {"loss_bound": 8.0, "difference_bound": 1.0, "epsilon": 1.0, "subject": "loss"}
    other = None if base is None else np.array(base)
    return release_losses(store, np.array(model), other, **(options | changes))


def people(count, *, better_by):
    """Users who differ by nats, and a model that is better for each by nearly the same."""
    draw = np.random.default_rng(5)
    base = draw.uniform(5.0, 10.0, count)
    return base - better_by + draw.normal(0, 0.1, count), base


@pytest.mark.parametrize("bound", [1e-6, 0.1, 1.0, 3.0, 1e6])
def test_nobody_moves_the_sum_by_more_than_the_bound(bound):
    """One user adds one term to the sum of steps, of which the bound has `STEPS`."""
    extreme = [0.0, 0.3, -0.3, 5.0, -5.0, 1e300, -1e300, math.inf, -math.inf, math.nan]
    assert all(abs(step) <= STEPS for step in to_steps(np.array(extreme), bound))
    assert abs(round(5.0 * STEPS)) > STEPS, "the twin: a difference that is not clipped"


def test_a_user_moves_each_answer_by_no_more_than_was_paid_for(store, monkeypatch):
    """The questions with and without one user: OpenDP's own maps price no more than is charged."""
    asked: list[list] = []
    monkeypatch.setattr(
        module, "ask", lambda store, questions, of: asked.append(list(questions)) or ([0] * 4, ())
    )
    model, base = people(6, better_by=0.2)
    for one in (4.0, math.nan):
        losses(store, [*model, 6.0 + one], [*base, 6.0])
        losses(store, model, base)
        more, less = asked[-2:]
        for with_one, without in zip(more, less, strict=True):
            assert with_one.held[:-1] == without.held
            assert with_one.draw.map(1) <= with_one.epsilon * (1 + 1e-9)
        # The noise of the difference is that of the bound, of its spread that of half its square.
        assert abs(more[1].held[-1]) <= STEPS
        assert abs(more[2].held[-1]) <= STEPS // 2
        assert sum(part.epsilon for part in more) == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("difference", [-0.18, 0.0, 0.5])
def test_without_noise_it_is_the_mean_of_clipped_differences(store, difference):
    model, base = people(400, better_by=-difference)
    model[:3] = [50.0, math.nan, -50.0]
    found = losses(store, model, base, epsilon=600.0).difference
    clipped = np.clip(np.where(np.isfinite(model), model, np.inf) - base, -1, 1)
    assert found.value == pytest.approx(clipped.mean(), abs=0.002)
    truth = clipped.std() / math.sqrt(len(clipped))
    assert 0.99 * truth < found.standard_error < 1.25 * truth
    assert found.noise_error < 0.1 * found.standard_error


def test_the_mean_is_of_clamped_losses_and_nearly_exact_without_noise(store):
    found = losses(store, LOSSES, loss_bound=4.0, epsilon=600.0)
    clamped = np.array([1.0, 2.5, 3.0, 3.5, 4.0, 4.0])
    assert abs(found.model.value - clamped.mean()) < 0.02  # false alarms: 4e-8
    assert found.users == 6
    assert found.difference is None
    assert found.model.standard_error < 0.01


def spread(values, stated):
    """The deviation of released numbers over the error that they state."""
    return float(np.std(values) / np.mean(stated))


@pytest.mark.slow
def test_the_stated_error_of_a_mean_is_that_of_many_releases(free, monkeypatch):

    def released():
        found = [losses(free, np.repeat([1.0, 2.0, 3.5], 400)).model for _ in range(120)]
        return spread([one.value for one in found], [one.standard_error for one in found])

    assert 0.75 < released() < 1.3
    honest = module.bounded_sum
    half = lambda least, most, *, epsilon: honest(least, most, epsilon=2 * epsilon)  # noqa: E731
    monkeypatch.setattr(module, "bounded_sum", half)
    assert not 0.75 < released() < 1.3, "the twin: half the noise"


@pytest.mark.slow
def test_the_noise_of_a_difference_is_what_it_says_and_its_error_covers_other_people_too(free):
    """Fresh people and fresh noise each time: two standard errors hold the truth nearly always."""
    model, base = people(1000, better_by=0.4)
    found = [losses(free, model, base).difference for _ in range(150)]
    values, stated = [one.value for one in found], [one.noise_error for one in found]
    assert 0.8 < spread(values, stated) < 1.25
    truth = np.clip(model - base, -1, 1).mean()
    assert abs(np.mean(values) - truth) < 5 * np.mean(stated) / math.sqrt(len(found))
    draw, inside = np.random.default_rng(7), 0
    for _ in range(100):
        base = draw.uniform(5, 10, 200)
        model = base - 0.2 + draw.normal(0, 0.5, 200).clip(-0.7, 0.7)
        one = losses(free, model, base).difference
        inside += abs(one.value + 0.2) <= 2 * one.standard_error
    assert inside >= 90


@pytest.mark.parametrize("paired", [False, True])
def test_all_is_charged_once_before_anything_is_drawn(store, monkeypatch, paired):
    def crash(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "bounded_sum", lambda *bounds, epsilon: crash)
    model, base = people(8, better_by=0.2)
    with pytest.raises(KeyboardInterrupt):
        losses(store, model, base if paired else None, epsilon=0.8)
    pair = ["sum of model less base loss", "spread of model less base loss"] if paired else []
    charges = StoreLedger(store.path).history().charges.values()
    assert [charge.pays_for.name for charge in charges] == [
        "sum of model loss", *pair, "users of loss",
    ]  # fmt: skip
    assert claim(store.path).guarantee.epsilon == pytest.approx(0.8, rel=1e-12)


def test_nobody_at_all_is_answered_too(store):
    """An error in place of an answer would tell that nobody was there."""
    found = losses(store, [], [], epsilon=5.0)
    assert 0 <= found.model.value <= 8
    assert -1 <= found.difference.value <= 1
    assert 0 <= found.difference.standard_error <= 1


@pytest.mark.parametrize(
    ("name", "bad"),
    [("epsilon", 0.0), ("epsilon", math.nan), ("loss_bound", -1.0), ("loss_bound", math.inf)]
    + [("difference_bound", bad) for bad in (0.0, math.nan, 1e7)],
)
def test_bad_use_charges_nothing(store, name, bad):
    with pytest.raises(UseError):
        losses(store, [1.0, 2.0], [1.0, 2.0], **{name: bad})
    with pytest.raises(UseError, match="same users"):
        losses(store, [1.0], [1.0, 2.0])
    assert StoreLedger(store.path).history().charges == {}
