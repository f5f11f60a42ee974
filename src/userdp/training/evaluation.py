"""Loss and perplexity on a split of a store. Exact, so operator-only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from userdp.data.progress import NoProgress, Progress
from userdp.data.splits import Split
from userdp.data.store import StoreSplit, UserStore
from userdp.errors import UseError
from userdp.gradients import Loss, causal_lm_loss
from userdp.training.losses import split_losses
from userdp.vocabulary import require_count

QUANTILES = {"p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95}
"""Of the users' own losses: how unequally a model serves people."""


MEASURES = {
    "loss": ("loss", ".4f", "nats per token"),
    "perplexity": ("perplexity", ".1f", "the exponential of the loss"),
    "user_loss": ("loss per user", ".4f", "everybody counts the same"),
}
"""What of an `Evaluation` is shown: the field, its heading, its format, and what it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """How well a model predicts the text of a split. Operator-only: no ε covers it.

    Args:
        split: which.
        loss: mean over all target tokens, in nats.
        perplexity: ``exp(loss)``.
        user_loss: mean over users of each user's mean per target token: everybody counts the same.
        user_quantiles: of the users' own means per target token, by the names of `QUANTILES`.
        users: users read.
        examples: examples read.
        tokens: target tokens; with a loss mask, only the marked ones.
    """

    split: str
    loss: float
    perplexity: float
    user_loss: float
    user_quantiles: Mapping[str, float]
    users: int
    examples: int
    tokens: int


def evaluate(
    model: nn.Module,
    store: UserStore,
    split: Split,
    *,
    loss: Loss = causal_lm_loss,
    batch: int = 32,
    most_users: int | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """The model's loss on a split, in evaluation mode, without gradients; see `measure`."""
    return measure(
        model, store, split, loss=loss, batch=batch, most_users=most_users, progress=progress
    )[0]


def measure(
    model: nn.Module,
    store: UserStore,
    split: Split,
    *,
    loss: Loss = causal_lm_loss,
    batch: int = 32,
    most_users: int | None = None,
    progress: Progress | None = None,
) -> tuple[Evaluation, NDArray[np.float64]]:
    """The model's loss on a split, and each user's own, in evaluation mode, without gradients.

    Args:
        model: left in the mode it was in.
        store: where the split is.
        split: training users' held-out examples, held-out users, or the training split.
        loss: mean per row over its own targets.
        batch: examples in one pass, sorted by length.
        most_users: reads only the users of the so many smallest hashes, see `users_by_hash`; all by
            default.
        progress: is told how many examples are done; operator-only.

    Returns:
        The evaluation, and float64 (users,), the loss per target token of each user who has one,
        in the store's order; operator-only.

    Raises:
        UseError: the split is empty, or the store has a loss mask that ``loss`` would ignore.
    """
    part = store.split(split)
    chosen = users_by_hash(part, most_users)
    if not part.counts[chosen].sum():
        raise UseError(
            f"the store holds nothing in split {split}: there is no loss to measure",
            hint="prepare the store with a part held out, or choose another --split",
        )
    users, examples = _rows_of(part, chosen)
    shown = progress or NoProgress()
    shown.stage("evaluate", len(users))
    row_losses, targets = split_losses(
        model, part, users, examples, loss=loss, batch=batch, done=shown.at
    )
    sums = np.bincount(users, weights=row_losses * targets, minlength=len(part.counts))
    tokens = np.bincount(users, weights=targets, minlength=len(part.counts))
    measured = tokens > 0
    if not measured.any():
        raise UseError(f"no example of split {split} has a target: there is no loss to measure")
    mean = float(sums.sum() / tokens.sum())
    user_means = sums[measured] / tokens[measured]
    evaluation = Evaluation(
        split=str(split),
        loss=mean,
        perplexity=math.exp(min(mean, 700.0)),
        user_loss=float(np.mean(user_means)),
        user_quantiles={
            name: float(np.quantile(user_means, level)) for name, level in QUANTILES.items()
        },
        users=len(chosen),
        examples=len(users),
        tokens=int(tokens.sum()),
    )
    return evaluation, user_means


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """How much more a model loses than another on the same users. Operator-only: no ε covers it.

    Args:
        user_loss: mean over users of each one's loss less that under the other model, in nats per
            token; negative where the model is better.
        standard_error: of that mean, for other people of the same kind; None for a single user.
        better_for: the share of users whose loss is smaller.
    """

    user_loss: float
    standard_error: float | None
    better_for: float


def paired(model: NDArray[np.float64], other: NDArray[np.float64]) -> Difference:
    """The difference of two models' losses of the same users, in the same order.

    What makes one user's text harder than another's cancels in each pair, so that this tells
    differences far below the standard error of either mean.
    """
    each = model - other
    error = float(np.std(each, ddof=1)) / math.sqrt(len(each)) if len(each) > 1 else None
    return Difference(
        user_loss=float(np.mean(each)),
        standard_error=error,
        better_for=float(np.mean(each < 0)),
    )


def users_by_hash(part: StoreSplit, most_users: int | None) -> NDArray[np.int64]:
    """The users to read: all, or those of the ``most_users`` smallest public-salt hashes.

    The order of a store is that of its users' ids, and the first of those may be alike (one
    company, the earliest accounts). Hashes have nothing to do with what a user wrote.

    Returns:
        int64 (users,), ascending.
    """
    everybody = np.arange(len(part.counts), dtype=np.int64)
    if most_users is None:
        return everybody
    require_count("most_users", most_users)
    order = np.lexsort((part.user_hashes[:, 1], part.user_hashes[:, 0]))
    return np.sort(everybody[order[:most_users]])


def user_losses(
    model: nn.Module,
    store: UserStore,
    split: Split,
    *,
    loss: Loss = causal_lm_loss,
    batch: int = 32,
) -> NDArray[np.float64]:
    """Each user's mean loss per target token, each computed with nobody else's text in a pass.

    Guarantee: a user's number is a function of the model and that user's examples alone, to the
    last bit (a pass that pads one user's rows to another's would round otherwise), so that adding
    or removing a user adds or removes one number. Users without a target have none.

    Args:
        model: left in the mode it was in.
        store: where the split is.
        split: whose users.
        loss: mean per row over its own targets.
        batch: most examples in one pass.

    Returns:
        float64 (users,); not finite where the model's loss is not. Operator-only.
    """
    part = store.split(split)
    means = []
    for user, count in enumerate(part.counts):
        rows = np.full(count, user)
        losses, targets = split_losses(model, part, rows, np.arange(count), loss=loss, batch=batch)
        if targets.sum():
            means.append(float((losses * targets).sum() / targets.sum()))
    return np.array(means, dtype=np.float64)


def _rows_of(
    part: StoreSplit, chosen: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All examples of the chosen users, as pairs (user, example)."""
    counts = part.counts[chosen]
    users = np.repeat(chosen, counts)
    firsts = np.repeat(np.cumsum(counts) - counts, counts)
    return users, np.arange(len(users), dtype=np.int64) - firsts
