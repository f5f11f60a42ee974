"""Whether a winner is one: in pairs where losses are exact, by the noise where they are not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from userdp.sweeping.trial_scores import Score, behind, exact_score, inside_the_noise


def test_pairs_tell_what_the_losses_alone_do_not():
    """Users differ by nats; one trial is worse for each by 0.2, the other differs by chance."""
    draw = np.random.default_rng(3)
    first = draw.uniform(5, 10, 100)
    worse, like = (
        first + 0.2 + draw.normal(0, 0.1, 100),
        first + draw.permutation([0.3, -0.29] * 50),
    )
    winner = exact_score(first)
    less, error = behind(exact_score(worse), winner)
    assert less == pytest.approx(0.2, abs=0.05)
    assert winner.error > less / 2  # unpaired, 0.2 is far inside of the noise
    assert error == pytest.approx((worse - first).std(ddof=1) / math.sqrt(100))
    assert not inside_the_noise(less, error)
    assert inside_the_noise(*behind(exact_score(like), winner))


def test_other_scores_are_compared_by_their_noise_as_far_as_it_is_known():
    for score, error, inside in (
        (Score(value=-7.2, loss=7.2, error=0.1), 0.1 * math.sqrt(2), True),
        (Score(value=-7.6, loss=7.6, error=0.1), 0.1 * math.sqrt(2), False),
        (Score(value=-9.0, loss=9.0), None, True),
        (Score(value=None, note="its loss is not finite"), None, False),
    ):
        found = behind(score, Score(value=-7.0, loss=7.0, error=0.1))
        assert (found[1], inside_the_noise(*found)) == (pytest.approx(error), inside)
