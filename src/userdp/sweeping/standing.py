"""How far each trial is behind the winner, and whether that is more than chance and noise explain.

Exact scores are compared in pairs: the difference of each user's two losses, whose mean has a far
smaller standard error than the losses themselves, since what makes one user's text harder than
another's cancels. Scores under DP are compared by their noise only: the people are the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from userdp.sweeping.scores import Score
from userdp.training.losses import paired

CERTAIN = 2.0
"""Standard errors from which on a difference is told apart from none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """A trial beside the winner.

    Args:
        behind: its loss less the winner's, in nats per token; not negative.
        error: the standard error of that; None where it is not known.
    """

    behind: float
    error: float | None

    @property
    def inside_the_noise(self) -> bool:
        """Whether it may as well be the better of the two."""
        return self.error is None or self.behind < CERTAIN * self.error


def standings(
    best: int,
    scores: Mapping[int, Score],
    losses: Mapping[int, NDArray[np.float64]],
) -> dict[int, Standing]:
    """Every trial but the winner that has a loss.

    Args:
        best: the winner.
        scores: of all trials.
        losses: float64 (users,), exact, as far as they are kept; empty under DP.
    """
    told = {}
    winner = scores[best].loss
    for number, score in scores.items():
        if number == best or score.loss is None or winner is None:
            continue
        error = None
        if number in losses and best in losses and len(losses[number]) == len(losses[best]):
            error = paired(losses[number], losses[best])["standard_error"]
        elif score.error is not None and scores[best].error is not None:
            error = math.hypot(score.error, scores[best].error or 0.0)
        told[number] = Standing(behind=score.loss - winner, error=error)
    return told
