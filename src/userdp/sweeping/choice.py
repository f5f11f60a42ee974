"""The score of a trial, and how far each trial is behind the winner.

A score says how little a trial loses on people it was not trained on; higher is better. Exact
scores are compared in pairs: the difference of each user's two losses, whose mean has a far smaller
standard error than the losses themselves, since what makes one user's text harder than another's
cancels. Scores under DP are compared by their noise only: the people are the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from userdp.claims.lineage import Lineage
from userdp.data.store import UserStore
from userdp.ledger import StoreLedger
from userdp.queries.comparison import GRID, release_losses, to_grid
from userdp.queries.statistics import bounded_sum
from userdp.training.losses import paired

CERTAIN = 2.0
"""Standard errors from which on a difference is told apart from none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """What a trial is chosen by.

    Args:
        value: higher is better; None for a trial that cannot win.
        loss: per user, in nats per token, where the score tells it.
        note: why there is no value.
        error: the standard error of ``loss`` (for other people where it is exact, of its noise
            under DP), or, without a loss, that of ``value``.
        losses: each user's, exact and operator-only; none under DP.
    """

    value: float | None
    loss: float | None = None
    note: str | None = None
    error: float | None = None
    losses: tuple[float, ...] = ()


def exact_score(losses: NDArray[np.float64]) -> Score:
    """The exact mean over users of each one's loss: operator-only."""
    loss = float(np.mean(losses)) if len(losses) else math.nan
    if not math.isfinite(loss):
        return Score(value=None, note="its loss is not finite")
    error = float(np.std(losses, ddof=1)) / math.sqrt(len(losses)) if len(losses) > 1 else None
    return Score(value=-loss, loss=loss, error=error, losses=tuple(losses.tolist()))


def released_score(
    store: UserStore,
    losses: NDArray[np.float64],
    *,
    epsilon: float,
    bound: float,
    subject: str,
    of: Lineage,
) -> Score:
    """The DP mean over users of each one's loss, charged in the store's ledger before it is drawn.

    Guarantee: (``epsilon``, 0)-DP per user, add-or-remove. ``subject`` names this score in the
    ledger, once: a score that a crash took away after it was charged is not drawn again, since
    nobody would pay for the second. ``of`` is what the model of the losses descends from.
    """
    charged = StoreLedger(store.path).charges()
    if any((charge.query_name or "").endswith(subject) for charge in charged):
        return Score(value=None, note="a crash came between its charge and its answer")
    mean = release_losses(
        store, losses, loss_bound=bound, epsilon=epsilon, subject=subject, of=of
    ).model
    return Score(value=-mean.value, loss=mean.value, error=mean.standard_error)


def selection_score(losses: NDArray[np.float64], *, epsilon: float, bound: float) -> float:
    """A noisy sum over users of half the bound less each one's loss, in nats per token.

    A loss that is not finite counts as ``bound``.

    Guarantee: (``epsilon``, 0)-DP per user, add-or-remove, by discrete Laplace noise. It is part of
    the base mechanism of a private selection, which pays for it: nothing is charged here, and it
    must not be shown outside of the winner.

    Source: Dwork and Roth 2014, Section 3.3.
    """
    top = max(1, math.floor(bound * GRID))
    middle = top // 2
    draw = bounded_sum(middle - top, middle, epsilon=epsilon)
    return int(draw([middle - step for step in to_grid(losses, top)])) / GRID


def selection_error(*, epsilon: float, bound: float) -> float:
    """The standard deviation of the noise of a `selection_score`: a public constant."""
    return math.sqrt(2.0) * bound / 2 / epsilon


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """A trial beside the winner.

    Args:
        behind: its loss less the winner's, in nats per token; not negative. None of the winner
            itself, and where a score tells no loss.
        error: the standard error of that; None where it is not known.
    """

    behind: float | None = None
    error: float | None = None

    @property
    def inside_the_noise(self) -> bool:
        """Whether it may as well be the better of the two."""
        return self.behind is not None and (
            self.error is None or self.behind < CERTAIN * self.error
        )


def standings(best: int, scores: Mapping[int, Score]) -> dict[int, Standing]:
    """How far each trial is behind the winner, as far as both scores tell."""
    winner, told = scores[best], dict[int, Standing]()
    for number, score in scores.items():
        error = None
        if score.losses and len(score.losses) == len(winner.losses):
            error = paired(np.array(score.losses), np.array(winner.losses))["standard_error"]
        elif score.error is not None and winner.error is not None:
            error = math.hypot(score.error, winner.error)
        known = number != best and score.loss is not None and winner.loss is not None
        behind = (score.loss or 0.0) - (winner.loss or 0.0)
        told[number] = Standing(behind=behind, error=error) if known else Standing()
    return told
