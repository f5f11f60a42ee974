"""The score of a trial, and how far each trial is behind the winner.

A score is the negative of a trial's loss on people that it did not train on: higher is better.
Exact scores are compared user by user. The mean of the differences of each user's two losses has a
far smaller standard error than the losses themselves, since the difficulty of a user's text
cancels. Scores under DP are compared by their noise only, since the people are the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from userdp.claims.lineage import Lineage
from userdp.data.user_store import UserStore
from userdp.ledger import StoreLedger
from userdp.ledger.charged_parts import Query
from userdp.queries.comparison import GRID, release_losses, to_grid
from userdp.queries.statistics import bounded_sum
from userdp.training.store_losses import paired

CERTAIN = 2.0
"""Standard errors from which on a difference is told apart from none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """The number by which trials are compared.

    Args:
        value: higher is better; None for a trial that cannot win.
        loss: the mean over users in nats per token, where the score tells it.
        note: why there is no value.
        error: the standard error of ``loss``, or of ``value`` where there is no loss. Under DP it
            is that of the noise; of an exact loss it is that for other people.
        losses: the exact loss of each user, operator-only; empty under DP.
    """

    value: float | None
    loss: float | None = None
    note: str | None = None
    error: float | None = None
    losses: tuple[float, ...] = ()


def exact_score(losses: NDArray[np.float64]) -> Score:
    """The exact mean of the users' losses: operator-only."""
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
    """The DP mean of the users' losses, charged in the store's ledger before it is drawn.

    Guarantee: (``epsilon``, 0)-DP per user, add-or-remove. The ledger has one score named
    ``subject``: if a crash takes a charged score away, it is not drawn again, since nobody would
    pay for the second. ``of`` is the lineage of the model.
    """
    asked = (one.pays_for for one in StoreLedger(store.path).history().charges.values())
    if any(isinstance(one, Query) and one.name.endswith(subject) for one in asked):
        return Score(value=None, note="a crash came between its charge and its answer")
    mean = release_losses(
        store, losses, loss_bound=bound, epsilon=epsilon, subject=subject, of=of
    ).model
    return Score(value=-mean.value, loss=mean.value, error=mean.standard_error)


def selection_score(losses: NDArray[np.float64], *, epsilon: float, bound: float) -> Score:
    """A noisy sum over users of half the bound minus the user's loss, in nats per token.

    A loss that is not finite counts as ``bound``. The error is that of the noise, a public
    constant.

    Guarantee: (``epsilon``, 0)-DP per user, add-or-remove, by discrete Laplace noise. The price of
    a private selection holds it: nothing is charged here, and only the winner's may be shown.

    Source: Dwork and Roth 2014, Section 3.3.
    """
    top = max(1, math.floor(bound * GRID))
    middle = top // 2
    draw = bounded_sum(middle - top, middle, epsilon=epsilon)
    total = int(draw([middle - step for step in to_grid(losses, top)]))
    return Score(value=total / GRID, error=math.sqrt(2.0) * bound / 2 / epsilon)


def behind(score: Score, winner: Score) -> tuple[float | None, float | None]:
    """How far a trial is behind the winner, in nats per token, and the standard error of that.

    Each is None where the two scores do not tell it.
    """
    if score.loss is None or winner.loss is None:
        return None, None
    error = None
    if score.losses and len(score.losses) == len(winner.losses):
        error = paired(np.array(score.losses), np.array(winner.losses))["standard_error"]
    elif score.error is not None and winner.error is not None:
        error = math.hypot(score.error, winner.error)
    return score.loss - winner.loss, error


def inside_the_noise(behind: float | None, error: float | None) -> bool:
    """Whether a trial that is so far behind the winner may as well be the better of the two."""
    return behind is not None and (error is None or behind < CERTAIN * error)
