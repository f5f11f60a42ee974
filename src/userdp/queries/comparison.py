r"""Two models on the same people, under pure user-level DP: the mean of each user's difference.

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
from userdp.data.store import UserStore
from userdp.data.verify import require_intact
from userdp.errors import UseError
from userdp.queries.answers import Question, ask
from userdp.queries.means import ReleasedMean, count_question, mean_of, sum_question
from userdp.queries.ownership import require_one_owner
from userdp.queries.statistics import bounded_sum
from userdp.vocabulary import require_positive

DEFAULT_BOUND = 1.0
"""Nats per token. Fine-tuning moves a user's loss by less than this; a model that is better by more
is told to be better by this much."""
STEPS = 2**20
"""Of the grid, from 0 to the bound."""
_SQUARE_STEPS = 2**20

_LOSS, _DIFFERENCE, _SQUARES, _COUNT = 2, 3, 1, 2
"""How ε is shared, in parts of their sum. The difference is what is asked for; the loss tells where
both models stand; the squares only how far the difference can be trusted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleasedDifference:
    """The mean over users of the model's loss less the base model's; negative where it is better.

    Args:
        value: in [-bound, bound].
        standard_error: of the noise, and of the people who happened to be asked.
        noise_error: that of the noise only.
        bound: b; a user's difference counts as at most so much, either way.
    """

    value: float
    standard_error: float
    noise_error: float
    bound: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleasedComparison:
    """What may be published of a model and the one that it began from.

    Args:
        model: the mean of the model's own losses.
        difference: see `ReleasedDifference`.
        users: the noisy number of users.
        epsilon: what all of it cost: (ε, 0)-DP per user, add-or-remove.
        query_ids: of its lines in the store ledger.
    """

    model: ReleasedMean
    difference: ReleasedDifference
    users: int
    epsilon: float
    query_ids: tuple[str, ...]


def release_comparison(
    store: UserStore,
    model: NDArray[np.float64],
    base: NDArray[np.float64],
    *,
    loss_bound: float,
    difference_bound: float,
    epsilon: float,
    subject: str,
    of: Lineage | None = None,
) -> ReleasedComparison:
    """A model's mean loss, and the mean difference to another model on the same users.

    Guarantee: (``epsilon``, 0)-DP per user, add-or-remove, if each number is a function of one
    user's data and of public or already released values; see the proof above. Of ``epsilon``, 3/8
    buy the difference, 1/8 its spread, 2/8 the model's loss and 2/8 the number of users.

    Args:
        store: whose users are charged.
        model: float64 (users,), each one's loss; one that is not finite counts as ``loss_bound``.
        base: float64 (users,), of the other model, of the same users in the same order. A
            difference that is not finite counts as ``difference_bound``: as a model that is worse.
        loss_bound: a public constant; > 0, at most 1e6.
        difference_bound: b, a public constant, chosen before any difference is looked at; from 1e-6
            to 1e6.
        epsilon: of all together; finite, > 0, at most 700.
        subject: what the numbers are; public, for the ledger.
        of: what the models descend from that the numbers are a function of.

    Raises:
        UseError: bad arguments, a damaged store, or records of the store have several owners.
    """
    require_positive("epsilon", epsilon, at_most=700.0)
    require_positive("bound", loss_bound, at_most=1e6)
    require_difference_bound(difference_bound)
    if len(model) != len(base):
        raise UseError("a difference needs both models' losses of the same users")
    require_one_owner(store.meta)
    require_intact(store)
    part = epsilon / (_LOSS + _DIFFERENCE + _SQUARES + _COUNT)
    steps = to_steps(model - base, difference_bound)
    half = _SQUARE_STEPS // 2
    squares = [round(step * step * _SQUARE_STEPS / STEPS**2) - half for step in steps]
    loss = sum_question(f"model {subject}", model, bound=loss_bound, epsilon=_LOSS * part)
    answers, ids = ask(
        store,
        [
            loss,
            Question(
                name=f"sum of model less base {subject}",
                draw=bounded_sum(-STEPS, STEPS, epsilon=_DIFFERENCE * part),
                held=steps,
                epsilon=_DIFFERENCE * part,
            ),
            Question(
                name=f"spread of model less base {subject}",
                draw=bounded_sum(-half, half, epsilon=_SQUARES * part),
                held=squares,
                epsilon=_SQUARES * part,
            ),
            count_question(subject, len(model), epsilon=_COUNT * part),
        ],
        of=of,
    )
    losses, total, spread, users = answers
    return ReleasedComparison(
        model=mean_of(
            losses, users, bound=loss_bound, sum_epsilon=_LOSS * part, count_epsilon=_COUNT * part
        ),
        difference=_difference(total, spread, users, bound=difference_bound, part=part),
        users=max(0, users),
        epsilon=epsilon,
        query_ids=ids,
    )


def require_difference_bound(bound: float) -> None:
    """`UseError` unless ``bound`` is from 1e-6 to 1e6: below, no loss in float32 tells anything."""
    if not 1e-6 <= bound <= 1e6:
        raise UseError(
            f"--difference-bound must be from 1e-6 to 1e6 nats per token, got {bound!r}",
            hint="it is a constant that is stated before anything is measured; 1 is the default",
        )


def to_steps(differences: NDArray[np.float64], bound: float) -> list[int]:
    """Differences, clipped to [-``bound``, ``bound``], as whole steps of the grid.

    >>> to_steps(np.array([0.0, -0.5, 9.0, -9.0, float("nan"), float("-inf")]), 1.0)
    [0, -524288, 1048576, -1048576, 1048576, 1048576]
    """
    known = np.where(np.isfinite(differences), differences, bound)
    steps = np.rint(np.clip(known / bound, -1.0, 1.0) * STEPS)
    return [int(step) for step in steps]


def _difference(
    total: int, spread: int, users: int, *, bound: float, part: float
) -> ReleasedDifference:
    """Post-processing of the three noisy numbers; in units of ``bound`` until the end."""
    people = max(1, users)
    mean = min(max(total / STEPS / people, -1.0), 1.0)
    root = math.sqrt(2.0)
    noise = math.hypot(root / (_DIFFERENCE * part), mean * root / (_COUNT * part)) / people
    spread_noise = root / 2 * math.hypot(1 / (_SQUARES * part), 1 / (_COUNT * part)) / people
    square = spread / _SQUARE_STEPS / people + 0.5 + spread_noise
    variance = min(max(square - mean * mean, 0.0), 1.0 - mean * mean)
    error = math.hypot(noise, math.sqrt(variance / people))
    return ReleasedDifference(
        value=mean * bound,
        standard_error=min(error, 1.0) * bound,
        noise_error=min(noise, 1.0) * bound,
        bound=bound,
    )
