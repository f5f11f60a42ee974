"""Whether a winner is one: in pairs where losses are exact, by the noise where they are not."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from userdp.cli.output import in_words
from userdp.sweeping.choice import Score, exact_score, standings
from userdp.sweeping.folder import SweepFolder


def losses_of(count: int = 100) -> dict[int, np.ndarray]:
    """Users who differ by nats; trial 2 is worse for each by 0.2, trial 3 differs by chance."""
    draw = np.random.default_rng(3)
    first = draw.uniform(5, 10, count)
    return {
        1: first,
        2: first + 0.2 + draw.normal(0, 0.1, count),
        3: first + draw.permutation([0.3, -0.29] * (count // 2)),
    }


def test_pairs_tell_what_the_losses_alone_do_not():
    losses = losses_of()
    scores = {number: exact_score(each) for number, each in losses.items()}
    told = standings(1, scores)
    assert told[2].behind == pytest.approx(0.2, abs=0.05)
    assert scores[1].error > told[2].behind / 2  # unpaired, 0.2 is far inside of the noise
    assert not told[2].inside_the_noise
    assert told[3].inside_the_noise
    each = losses[2] - losses[1]
    assert told[2].error == pytest.approx(each.std(ddof=1) / math.sqrt(len(each)))


def test_scores_under_dp_are_compared_by_their_noise():
    scores = {
        1: Score(value=-7.0, loss=7.0, error=0.1),
        2: Score(value=-7.2, loss=7.2, error=0.1),
        3: Score(value=-7.6, loss=7.6, error=0.1),
        4: Score(value=None, note="its loss is not finite"),
    }
    told = standings(1, scores)
    assert [told[number].inside_the_noise for number in range(1, 5)] == [False, True, False, False]
    assert told[2].error == pytest.approx(0.1 * math.sqrt(2))


def test_an_error_that_is_not_known_vouches_for_nothing():
    scores = {1: Score(value=-7.0, loss=7.0), 2: Score(value=-9.0, loss=9.0)}
    assert standings(1, scores)[2].inside_the_noise


def test_losses_are_kept_for_the_operator_only(tmp_path):
    folder = SweepFolder(tmp_path)
    scores = {number: exact_score(each) for number, each in losses_of(10).items()}
    for number, score in scores.items():
        folder.note(number, score)
    assert folder.scores() == scores
    assert {path.stat().st_mode & 0o077 for path in (tmp_path / "scores").iterdir()} == {0}


@pytest.mark.parametrize(
    ("near", "words"),
    [((), "ahead of every other"), ((3,), "trial 3 is behind"), ((3, 5), "trial 3, 5 are behind")],
)
def test_it_is_said(near, words):
    told = {"tuning": "composition", "headline": "…"}
    tuned = SimpleNamespace(trials=({}, {}), inside_the_noise=near, settings={}, winner="run")
    assert words in " ".join(map(str, in_words(tuned, "tune", told)))
