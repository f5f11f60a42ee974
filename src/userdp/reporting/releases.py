"""Losses that were released under DP: what a public page may say of how well a model predicts."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from userdp.codec import decode
from userdp.errors import UseError, kind_of
from userdp.ledger import RunRecord
from userdp.reporting.table import Table, table_of
from userdp.vocabulary import epsilon_up


@dataclass(frozen=True, kw_only=True, slots=True)
class ReleasedLoss:
    """A mean over users of each one's loss, with noise, charged in the store's ledger.

    Args:
        split: the store's name for the people who were asked.
        of: "model" or "base".
        user_loss: in nats per token, noisy.
        standard_error: of the noise.
        loss_bound: larger losses counted as so much.
        epsilon: (ε, 0)-DP per user, add-or-remove, of all that was released with it, beyond the
            run's own.
        difference: mean over users of the model's loss less the base model's, noisy; None where it
            was not released.
        difference_error: its standard error, noise included.
    """

    split: str
    of: str
    user_loss: float
    standard_error: float
    loss_bound: float
    epsilon: float
    difference: float | None = None
    difference_error: float | None = None

    @property
    def change(self) -> str | None:
        """The difference with its standard error, as text."""
        if self.difference is None:
            return None
        return f"{self.difference:+.4f} ± {self.difference_error:.4f}"

    @property
    def perplexity(self) -> float:
        """``exp(user_loss)``."""
        return math.exp(min(self.user_loss, 700.0))


def read_releases(run: RunRecord) -> tuple[ReleasedLoss, ...]:
    """All of a run's releases, oldest first: lines of its ledger.

    Raises:
        UseError: a release is none.
    """
    lines = (line.told for line in run.releases)
    try:
        return tuple(itertools.chain.from_iterable(map(_of_line, lines)))
    except (KeyError, TypeError) as error:
        raise UseError(f"{run.path} holds a release that is none: {kind_of(error)}") from error


def _of_line(entry: Mapping[str, Any]) -> list[ReleasedLoss]:
    """The losses of a model (and in older lines of its base), which share the price of a line."""
    shared = {name: entry[name] for name in ("split", "loss_bound", "epsilon")}
    own = ("user_loss", "standard_error")
    compared: dict[str, Any] = {}
    if "difference" in entry:
        compared["difference"] = entry["difference"]["user_loss"]
        compared["difference_error"] = entry["difference"]["standard_error"]
    told = [
        {
            "of": of,
            "difference": None,
            "difference_error": None,
            **shared,
            **{name: entry[of][name] for name in own},
            **(compared if of == "model" else {}),
        }
        for of in ("base", "model")
        if of in entry
    ]
    return [decode(ReleasedLoss, one, what="a release") for one in told]


def released_losses(losses: Iterable[tuple[str, ReleasedLoss]]) -> Table | None:
    """A table of losses, each with its run's name; None if there is none."""
    losses = list(losses)
    if not losses:
        return None
    return table_of(
        losses,
        {
            "Run": lambda one: one[0],
            "Measured on": lambda one: one[1].split,
            "Model": lambda one: "after" if one[1].of == "model" else "before",
            "Loss per user, nats per token": lambda one: f"{one[1].user_loss:.4f}",
            "Standard error of its noise": lambda one: f"± {one[1].standard_error:.4f}",
            "Less the loss before, user by user": lambda one: one[1].change,
            "Perplexity": lambda one: f"{one[1].perplexity:.1f}",
            "Losses count at most as": lambda one: f"{one[1].loss_bound:.4g}",
            "ε of the release": lambda one: epsilon_up(one[1].epsilon),
        },
        caption="Losses released under DP",
    )
