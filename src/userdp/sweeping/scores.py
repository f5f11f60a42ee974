"""The score of a trial: how little it loses on people it was not trained on. Higher is better."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from userdp.claims.lineage import Lineage
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.ledger import RunFolder, StoreLedger
from userdp.queries.means import GRID, release_means, to_grid
from userdp.queries.statistics import bounded_sum
from userdp.training.devices import AUTO, choose_device
from userdp.training.losses import user_losses
from userdp.training.models import read_model, require_fit


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """What a trial is chosen by.

    Args:
        value: higher is better; None for a trial that cannot win.
        loss: per user, in nats per token, where the score tells it.
        note: why there is no value.
        error: the standard error of ``loss`` (for other people where it is exact, of its noise
            under DP), or, without a loss, that of ``value``.
    """

    value: float | None
    loss: float | None = None
    note: str | None = None
    error: float | None = None


def trial_losses(
    run: RunFolder, store: UserStore, split: Split, *, batch: int, device: str = AUTO
) -> NDArray[np.float64]:
    """Each user's mean loss, in nats per token: float64 (users,); operator-only."""
    model = read_model(str(run.model)).to(choose_device(device))
    require_fit(model, str(run.model), store)
    return user_losses(model, store, split, batch=batch)


def exact_score(losses: NDArray[np.float64]) -> Score:
    """The exact mean over users of each one's loss: operator-only."""
    loss = float(np.mean(losses)) if len(losses) else math.nan
    if not math.isfinite(loss):
        return Score(value=None, note="its loss is not finite")
    error = float(np.std(losses, ddof=1)) / math.sqrt(len(losses)) if len(losses) > 1 else None
    return Score(value=-loss, loss=loss, error=error)


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
    released = release_means(
        store, {"model": losses}, bound=bound, epsilon=epsilon, subject=subject, of=of
    )
    mean = released.means["model"]
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
