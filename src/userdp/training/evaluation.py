"""Loss and perplexity on a split of a store. Exact, so operator-only."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from userdp.data.splits import Split
from userdp.data.store import StoreSplit, UserStore
from userdp.errors import UseError
from userdp.gradients import Loss, Units, causal_lm_loss, require_masked, row_losses
from userdp.guarantees import require_count


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """How well a model predicts the text of a split. Operator-only: no ε covers it.

    Args:
        split: which.
        loss: mean over all target tokens, in nats.
        perplexity: ``exp(loss)``.
        user_loss: mean over users of each user's mean per target token: everybody counts the same.
        users: users read.
        examples: examples read.
        tokens: target tokens; with a loss mask, the marked ones alone.
    """

    split: str
    loss: float
    perplexity: float
    user_loss: float
    users: int
    examples: int
    tokens: int

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self)


def evaluate(
    model: nn.Module,
    store: UserStore,
    split: Split,
    *,
    loss: Loss = causal_lm_loss,
    batch: int = 32,
    most_users: int | None = None,
) -> Evaluation:
    """The model's loss on a split, in evaluation mode, without gradients.

    Args:
        model: left in the mode it was in.
        store: where the split is.
        split: training users' held-out examples, held-out users, or the training split.
        loss: mean per row over its own targets.
        batch: examples in one pass, sorted by length.
        most_users: reads the first so many users alone; all by default.

    Raises:
        UseError: the split is empty, or the store has a loss mask that ``loss`` would ignore.
    """
    require_count("batch", batch)
    if store.meta.loss_mask:
        require_masked(loss)
    part = store.split(split)
    counts = part.counts if most_users is None else part.counts[:most_users]
    if not counts.sum():
        raise UseError(
            f"the store holds nothing in split {split}: there is no loss to measure",
            hint="prepare the store with a part held out, or choose another --split",
        )
    users = np.repeat(np.arange(len(counts)), counts)
    examples = np.concatenate([np.arange(count) for count in counts])
    row_losses, targets = _row_losses(model, part, users, examples, loss=loss, batch=batch)
    sums = np.bincount(users, weights=row_losses * targets, minlength=len(counts))
    tokens = np.bincount(users, weights=targets, minlength=len(counts))
    if not tokens.sum():
        raise UseError(f"no example of split {split} has a target: there is no loss to measure")
    mean = float(sums.sum() / tokens.sum())
    measured = tokens > 0
    return Evaluation(
        split=str(split),
        loss=mean,
        perplexity=math.exp(min(mean, 700.0)),
        user_loss=float(np.mean(sums[measured] / tokens[measured])),
        users=len(counts),
        examples=len(users),
        tokens=int(tokens.sum()),
    )


@torch.no_grad()
def _row_losses(
    model: nn.Module,
    part: StoreSplit,
    users: np.ndarray,
    examples: np.ndarray,
    *,
    loss: Loss,
    batch: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Each row's mean loss and its number of targets, in the order given."""
    device = next(model.parameters()).device
    order = np.argsort(-part.lengths(users, examples), kind="stable")
    losses = np.zeros(len(users))
    targets = np.zeros(len(users))
    was_training = model.training
    model.eval()
    try:
        for begin in range(0, len(order), batch):
            here = order[begin : begin + batch]
            rows = part.gather(users[here], examples[here])
            units = Units.from_flat(
                rows.tokens, rows.offsets, np.arange(len(here) + 1), rows.targets
            ).to(device)
            found = row_losses(loss, model, units.input_ids, units.lengths, units.targets)
            losses[here] = found.double().cpu().numpy()
            targets[here] = units.target_counts().cpu().numpy()
    finally:
        model.train(was_training)
    return losses, targets
