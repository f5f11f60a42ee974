"""Losses that were released under DP: what a public page may say of how well a model predicts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from userdp.errors import UseError

RELEASES = "releases.jsonl"
"""In a run's folder, written by `userdp evaluate --epsilon`; shareable."""


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
    """

    split: str
    of: str
    user_loss: float
    standard_error: float
    loss_bound: float
    epsilon: float

    @property
    def perplexity(self) -> float:
        """``exp(user_loss)``."""
        return math.exp(min(self.user_loss, 700.0))


def read_releases(run: Path) -> tuple[ReleasedLoss, ...]:
    """All of a run's releases, oldest first; none if there is no such file.

    Raises:
        UseError: the file cannot be read or is damaged.
    """
    path = run / RELEASES
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ()
    except (OSError, ValueError) as error:
        raise UseError(f"cannot read {path}: {error}") from error
    found: list[ReleasedLoss] = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            entry = json.loads(line)
            if entry["kind"] == "evaluation":
                found += [_released(entry, of) for of in ("base", "model") if of in entry]
        except (ValueError, KeyError, TypeError) as error:
            raise UseError(f"line {number} of {path} is damaged: {error!r}") from error
    return tuple(found)


def _released(entry: Mapping[str, Any], of: str) -> ReleasedLoss:
    return ReleasedLoss(
        split=str(entry["split"]),
        of=of,
        user_loss=float(entry[of]["user_loss"]),
        standard_error=float(entry[of]["standard_error"]),
        loss_bound=float(entry["loss_bound"]),
        epsilon=float(entry["epsilon"]),
    )
