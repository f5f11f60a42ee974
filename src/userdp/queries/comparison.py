r"""A model's mean loss, and its difference to the model it began from, under pure user-level DP.

A data set here is one number for each user. Numbers are rounded to a public grid first, and sums
are of integers: nothing is lost to floating point, and the noise is drawn exactly.

Two noisy means of losses say little about which model is better: each is noised by half the range
of a loss, and people differ among themselves by more than models do. The difference of a user's two
losses has a range of its own, `DEFAULT_BOUND` nats per token where a loss has eight, and what makes
one user's text harder than another's cancels in it.

**Mechanism.** For user u let d_u = loss of the model less loss of the base model, and
x_u = max(-b, min(b, d_u)), on a grid of b/`STEPS`. Released are, each with discrete Laplace noise,
S = Σ x_u, Q = Σ (x_u² - b²/2), and N, the number of users.

**Sensitivity.** The bound b is a constant that is stated before any difference is looked at. Adding
or removing a user adds or removes one term of each sum: S moves by |x_u| ≤ b, Q by
|x_u² - b²/2| ≤ b²/2 as 0 ≤ x_u² ≤ b², N by 1. Noise of scale b/ε_S, b²/(2 ε_Q) and 1/ε_N makes
them (ε_S, 0)-, (ε_Q, 0)- and (ε_N, 0)-DP, and basic composition adds these. Without clipping S
would move by whatever the most extreme user's difference is, and no noise would do.

**Standard error.** With n = max(1, N) and m = S/n in [-b, b], the noise of S and N moves m by
√2 √((b/ε_S)² + (m/ε_N)²)/n to first order. Other people of the same kind would have moved it by
√(v/n), where v ≤ b² - m² is the variance of the x_u: it is taken from Q, plus one standard
deviation of the noise of Q and N, so that it is rather too large. Both are functions of released
numbers.

Source: Dwork and Roth 2014, Sections 3.3 and 3.5.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from userdp.claims.lineage import Lineage
from userdp.core.errors import UseError
from userdp.core.vocabulary import require_positive
from userdp.data.user_store import UserStore
from userdp.queries.statistics import Question, ask, bounded_sum

DEFAULT_BOUND = 1.0
"""Nats per token. Fine-tuning moves a user's loss by less than this; a model that is better by more
is told to be better by this much."""
STEPS = 2**20
"""Of the grid of differences, from 0 to the bound, and of their squares."""
GRID = 4096
"""Steps of the grid of losses per nat."""

_SHARES = {False: (3, 0, 0, 2), True: (2, 3, 1, 2)}
"""How ε is shared between the loss, the difference, its squares and the count, in parts of their
sum, without and with a base model. A mean near a quarter of the bound from its middle, which is
usual for losses, has its least error near 3:2. The difference is what is asked for; the squares
tell only how far it can be trusted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleasedMean:
    """A mean loss that may be published.

    Args:
        value: in [0, bound], nats per token.
        standard_error: of the noise only, to first order, computed from released numbers.
    """

    value: float
    standard_error: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleasedDifference:
    """The mean over users of the model's loss less the base model's; negative where it is better.

    Args:
        value: in [-bound, bound].
        standard_error: of the noise, and of the people who happened to be asked.
        noise_error: that of the noise only.
    """

    value: float
    standard_error: float
    noise_error: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleasedLosses:
    """What may be published of a model and the one that it began from.

    Args:
        model: the mean of the model's own losses.
        difference: to the base model; None where no base model was asked about.
        users: the noisy number of users.
        query_ids: of its lines in the store ledger.
    """

    model: ReleasedMean
    difference: ReleasedDifference | None
    users: int
    query_ids: tuple[str, ...]


def release_losses(
    store: UserStore,
    model: NDArray[np.float64],
    base: NDArray[np.float64] | None = None,
    *,
    loss_bound: float,
    difference_bound: float = DEFAULT_BOUND,
    epsilon: float,
    subject: str,
    of: Lineage | None = None,
) -> ReleasedLosses:
    """A model's mean loss, and the mean difference to another model on the same users.

    Guarantee: (``epsilon``, 0)-DP per user, add-or-remove, if each number is a function of one
    user's data and of public or already released values; see the proof above. Every part is a line
    in the store's ledger, on the disk before any is drawn; their answers follow there.

    Args:
        store: whose users are charged.
        model: float64 (users,), each one's loss; one that is not finite counts as ``loss_bound``.
        base: float64 (users,), of the other model, of the same users in the same order. A
            difference that is not finite counts as ``difference_bound``: as a model that is worse.
        loss_bound: a public constant; > 0, at most 1e6.
        difference_bound: b, a public constant, chosen before any difference is looked at; > 0, at
            most 1e6.
        epsilon: of all together; finite, > 0, at most 700.
        subject: of the numbers; public, for the ledger.
        of: the lineage of the models that the numbers are a function of.

    Raises:
        UseError: bad arguments, a damaged store, or records of the store have several owners.
    """
    require_positive("epsilon", epsilon, at_most=700.0)
    require_positive("bound", loss_bound, at_most=1e6)
    require_positive("difference_bound", difference_bound, at_most=1e6)
    if base is not None and len(model) != len(base):
        raise UseError("a difference needs both models' losses of the same users")
    parts = _SHARES[base is not None]
    loss, moved, squared, counted = (epsilon * part / sum(parts) for part in parts)
    top = max(1, math.floor(loss_bound * GRID))
    losses = [step - top // 2 for step in to_grid(model, top)]
    asked = [_sum(f"sum of model {subject}", losses, -(top // 2), top - top // 2, loss)]
    if base is not None:
        steps, half = to_steps(model - base, difference_bound), STEPS // 2
        squares = [round(step * step / STEPS) - half for step in steps]
        asked += [
            _sum(f"sum of model less base {subject}", steps, -STEPS, STEPS, moved),
            _sum(f"spread of model less base {subject}", squares, -half, half, squared),
        ]
    asked.append(_sum(f"users of {subject}", [1] * len(model), 0, 1, counted))
    (total, *pair, users), ids = ask(store, asked, of=of)
    prices = (moved, squared, counted)
    return ReleasedLosses(
        model=_mean(total, users, top=top, sum_epsilon=loss, count_epsilon=counted),
        difference=_difference([*pair, users], prices, difference_bound) if pair else None,
        users=max(0, users),
        query_ids=ids,
    )


def to_grid(numbers: NDArray[np.float64], top: int) -> list[int]:
    """Losses as whole steps of the grid in [0, ``top``]; one that is not finite is ``top``.

    >>> to_grid(np.array([0.0, 1.0, 1e9, float("nan"), -1.0]), 8192)
    [0, 4096, 8192, 8192, 0]
    """
    steps = np.clip(np.where(np.isfinite(numbers), numbers, np.inf) * GRID, 0, top)
    return [int(step) for step in np.rint(steps)]


def to_steps(differences: NDArray[np.float64], bound: float) -> list[int]:
    """Differences, clipped to [-``bound``, ``bound``], as whole steps of the grid.

    >>> to_steps(np.array([0.0, -0.5, 9.0, -9.0, float("nan"), float("-inf")]), 1.0)
    [0, -524288, 1048576, -1048576, 1048576, 1048576]
    """
    known = np.where(np.isfinite(differences), differences, bound)
    steps = np.rint(np.clip(known / bound, -1.0, 1.0) * STEPS)
    return [int(step) for step in steps]


def _sum(name: str, held: list[int], least: int, most: int, epsilon: float) -> Question:
    draw = bounded_sum(least, most, epsilon=epsilon)
    return Question(name=name, draw=draw, held=held, epsilon=epsilon)


def _mean(
    total: int, users: int, *, top: int, sum_epsilon: float, count_epsilon: float
) -> ReleasedMean:
    """Post-processing of the noisy sum about the middle of the range, and of the noisy count."""
    people, middle = max(1, users), top // 2
    off = min(max(total / people, -middle), top - middle)
    noise = math.sqrt(2.0) * math.hypot((top - middle) / sum_epsilon, off / count_epsilon) / people
    return ReleasedMean(value=(middle + off) / GRID, standard_error=min(noise, top) / GRID)


def _difference(
    answers: list[int], prices: tuple[float, float, float], bound: float
) -> ReleasedDifference:
    """Post-processing of the three noisy numbers; in units of ``bound`` until the end."""
    (total, spread, users), (moved, squared, counted) = answers, prices
    root, people = math.sqrt(2.0), max(1, users)
    mean = min(max(total / STEPS / people, -1.0), 1.0)
    noise = root * math.hypot(1 / moved, mean / counted) / people
    spread_noise = root / 2 * math.hypot(1 / squared, 1 / counted) / people
    square = spread / STEPS / people + 0.5 + spread_noise
    variance = min(max(square - mean * mean, 0.0), 1.0 - mean * mean)
    error = math.hypot(noise, math.sqrt(variance / people))
    return ReleasedDifference(
        value=mean * bound,
        standard_error=min(error, 1.0) * bound,
        noise_error=min(noise, 1.0) * bound,
    )
