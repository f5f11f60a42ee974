"""Losses of a model on a store: of its examples, its users and its splits; and the loss of a run.

Evaluation, personalization, scores and attacks all measure by one loop, `split_losses`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from userdp.core.codec import canonical
from userdp.core.errors import UseError
from userdp.core.stages import Progress
from userdp.core.vocabulary import require_count
from userdp.data.selection import write_scores
from userdp.data.splits import Split
from userdp.data.store_contents import members_of
from userdp.data.store_folder import remember
from userdp.data.user_store import StoreSplit, UserStore
from userdp.gradients import Loss, Units, causal_lm_loss, require_masked, row_losses
from userdp.gradients.model_randomness import secret_randomness
from userdp.ledger import StoreLedger
from userdp.training.causal_models import read_model
from userdp.training.collate import gather_units
from userdp.training.config import Precision, TrainConfig
from userdp.training.devices import AUTO, choose_device
from userdp.training.model_origin import lineage_of_model

QUANTILES = {"p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95}
"""Quantiles over users of their own losses: they show how unequally a model serves people."""


_LARGEST = math.log(np.finfo(np.float32).max)
"""The largest loss whose perplexity the file can hold."""


def build_loss(config: TrainConfig, model: nn.Module) -> Loss:
    """`causal_lm_loss`, under autocast to bfloat16 if ``config`` asks for it.

    Sensitivity does not depend on it: a row's gradient stays a function of only that row, and is
    clipped as computed, in float32 or wider.
    """
    if config.precision is Precision.FLOAT32:
        return causal_lm_loss
    device = next(model.parameters()).device.type
    under_autocast: Loss = torch.autocast(device, dtype=torch.bfloat16)(causal_lm_loss)
    return under_autocast


def losses_of(
    loss: Loss, model: nn.Module, units: Units, rows: slice | NDArray[np.int64]
) -> Tensor:
    """The loss of some rows, (rows,), in one pass that is as wide as the longest of them."""
    width = int(units.lengths[rows].max())
    targets = None if units.targets is None else units.targets[rows, :width]
    return row_losses(loss, model, units.input_ids[rows, :width], units.lengths[rows], targets)


def rows_of(
    part: StoreSplit, chosen: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All examples of the chosen users, as pairs (user, example)."""
    place, examples = members_of(part.counts[chosen])
    return chosen[place], examples


@secret_randomness()
@torch.no_grad()
def split_losses(
    model: nn.Module,
    part: StoreSplit,
    users: NDArray[np.int64],
    examples: NDArray[np.int64],
    *,
    loss: Loss = causal_lm_loss,
    batch: int = 32,
    done: Callable[[int], None] = lambda rows: None,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Each example's mean loss per target token, and its number of targets. Operator-only.

    Examples of like length share a pass, the longest first, so that memory runs out at once or
    never. The model is in evaluation mode meanwhile.

    Args:
        model: on any device.
        part: of a store.
        users: int64 (rows,), positions in ``part``.
        examples: int64 (rows,), each one's position among its user's.
        loss: with a mask, only over marked tokens.
        batch: rows in one pass.
        done: is called with the number of rows that are done.

    Returns:
        float64 (rows,) losses and int64 (rows,) targets, in the order given; a row without targets
        has a loss of no meaning.

    Raises:
        UseError: ``batch`` is less than 1, or the store has a loss mask that ``loss`` would ignore.
    """
    require_count("batch", batch)
    device = next(model.parameters()).device
    order = np.argsort(-part.lengths(users, examples), kind="stable")
    losses = np.zeros(len(users))
    targets = np.zeros(len(users), dtype=np.int64)
    was_training = model.training
    model.eval()
    try:
        for begin in range(0, len(order), batch):
            here = order[begin : begin + batch]
            units = gather_units(part, users[here], examples[here]).to(device)
            if units.targets is not None:
                require_masked(loss)
            of_rows = row_losses(loss, model, units.input_ids, units.lengths, units.targets)
            losses[here] = of_rows.double().cpu().numpy()
            targets[here] = units.target_counts().cpu().numpy()
            done(begin + len(here))
    finally:
        model.train(was_training)
    return losses, targets


def mean_loss(
    model: nn.Module,
    part: StoreSplit,
    users: NDArray[np.int64],
    examples: NDArray[np.int64],
    *,
    loss: Loss = causal_lm_loss,
    batch: int = 32,
) -> tuple[float, int]:
    """The mean loss per target token of some examples, 0 without a target; and the targets.

    Args: as of `split_losses`.
    """
    losses, targets = split_losses(model, part, users, examples, loss=loss, batch=batch)
    return float((losses * targets).sum() / max(1, targets.sum())), int(targets.sum())


def evaluate(
    model: nn.Module,
    store: UserStore,
    split: Split,
    *,
    loss: Loss = causal_lm_loss,
    batch: int = 32,
    most_users: int | None = None,
    progress: Progress | None = None,
) -> tuple[dict[str, Any], NDArray[np.float64]]:
    """How well a model predicts the text of a split, in evaluation mode, without gradients.

    Operator-only: no ε covers it.

    Args:
        model: left in the mode it was in.
        store: where the split is.
        split: training users' held-out examples, held-out users, or the training split.
        loss: mean per row over its own targets.
        batch: examples in one pass, sorted by length.
        most_users: reads only the users of the so many smallest hashes, see `users_by_hash`; all by
            default.
        progress: shows how many examples are done.

    Returns:
        ``split``; ``loss``, the mean over all target tokens (with a loss mask, the marked ones), in
        nats; ``perplexity``, its exponential; ``user_loss``, the mean over users of each user's
        mean per target token, in which everybody counts the same; ``user_quantiles`` of the users'
        own means, by the names of `QUANTILES`; ``users``, ``examples`` and target ``tokens`` read.
        And float64 (users,), the loss of each user who has a target, in the store's order.

    Raises:
        UseError: the split has no target, or the store has a loss mask that ``loss`` would ignore.
    """
    part = store.split(split)
    chosen = users_by_hash(part, most_users)
    users, examples = rows_of(part, chosen)
    shown = progress or Progress()
    shown.stage("evaluate", len(users))
    losses, targets = split_losses(
        model, part, users, examples, loss=loss, batch=batch, done=shown.at
    )
    sums = np.bincount(users, weights=losses * targets, minlength=len(part.counts))
    tokens = np.bincount(users, weights=targets, minlength=len(part.counts))
    measured = tokens > 0
    if not measured.any():
        raise UseError(
            f"the store holds no target in split {split}: there is no loss to measure",
            hint="prepare the store with a part held out, or choose another --split",
        )
    mean = float(sums.sum() / tokens.sum())
    each = sums[measured] / tokens[measured]
    return {
        "split": str(split),
        "loss": mean,
        "perplexity": perplexity(mean),
        "user_loss": float(np.mean(each)),
        "user_quantiles": {name: float(np.quantile(each, q)) for name, q in QUANTILES.items()},
        "users": len(chosen),
        "examples": len(users),
        "tokens": int(tokens.sum()),
    }, each


def paired(model: NDArray[np.float64], other: NDArray[np.float64]) -> dict[str, float | None]:
    """The mean difference of two models' losses on the same users, in the same order.

    One user's text is harder than another's under both models, which cancels in each pair: the mean
    shows differences far below the standard error of either model's mean. Operator-only.

    Returns:
        ``user_loss``, the mean over users of each one's loss less that under the other model, in
        nats per token, negative where the model is better; ``standard_error`` of that mean, for
        other people of the same kind, None for a single user; ``better_for``, the share of users
        whose loss is smaller.
    """
    each = model - other
    error = float(np.std(each, ddof=1)) / math.sqrt(len(each)) if len(each) > 1 else None
    return {
        "user_loss": float(np.mean(each)),
        "standard_error": error,
        "better_for": float(np.mean(each < 0)),
    }


def users_by_hash(part: StoreSplit, most_users: int | None) -> NDArray[np.int64]:
    """The users to read: all, or those of the ``most_users`` smallest public-salt hashes.

    The order of a store is that of its users' ids, and the first of those may be alike (one
    company, the earliest accounts). Hashes have nothing to do with what a user wrote.

    Returns:
        int64 (users,), ascending.
    """
    if most_users is None:
        return np.arange(len(part.counts), dtype=np.int64)
    require_count("most_users", most_users)
    return np.sort(np.lexsort((part.user_hashes[:, 1], part.user_hashes[:, 0]))[:most_users])


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
    each = (rows_of(part, np.array([user])) for user in range(len(part.counts)))
    means = (mean_loss(model, part, *rows, loss=loss, batch=batch) for rows in each)
    return np.array([mean for mean, targets in means if targets], dtype=np.float64)


def perplexity(loss: float) -> float:
    """The exponential of a loss, which no number holds beyond 700 nats."""
    return math.exp(min(loss, 700.0))


def score_store(
    store: UserStore,
    model: str,
    out: Path,
    *,
    split: Split = Split.TRAIN,
    batch: int = 32,
    device: str = AUTO,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write ``exp(mean loss)`` of each example of ``split`` to ``out``, a file of mode 0600.

    `userdp.data.selection` reads the file. A user's selection may depend only on that user's text
    and on public data (invariant 11), so the model must not have been trained on people's text: its
    scores would let one user's text decide which examples of another are trained on.

    Guarantee: a score depends on its own user's examples and the model; with a loss mask, only on
    marked tokens. NaN where an example has no target or its loss is not finite. Operator-only:
    scores are exact functions of private text.

    Args:
        store: whose examples are read.
        model: "bundled", a folder, or a name on the hub; trained only on public data.
        out: the file; what lies there is replaced.
        split: which examples.
        batch: examples in one pass.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
        progress: shows how many examples are done.

    Returns:
        ``examples``, ``unscored`` and the quartiles of the scores under ``quantiles``;
        operator-only.

    Raises:
        UseError: the split is empty, or the model cannot read the store's tokens
            or was trained on people's text.
    """
    require_count("micro_batch", batch)
    computes = choose_device(device)
    part = store.split(split)
    users, examples = rows_of(part, np.arange(len(part.counts)))
    if not len(users):
        raise UseError(f"the store holds nothing in split {split}: there is nothing to score")
    scorer = read_model(model, store=store)
    lineage = lineage_of_model(store, scorer, name=model)
    if lineage.parts:
        raise UseError(
            f"the model {model!r} was trained on people's text, which would choose among others'",
            hint="score with a model of public data, such as --model bundled",
        )
    StoreLedger(store.path).look("score")
    shown = progress or Progress()
    shown.stage("score", len(users))
    scorer = scorer.to(computes)
    losses, targets = np.zeros(len(users)), np.zeros(len(users), dtype=np.int64)
    for begin, end in pairwise([0, *np.cumsum(part.counts)]):
        # A pass that pads one user's rows to another's would round otherwise: see `user_losses`.
        own = (scorer, part, users[begin:end], examples[begin:end])
        losses[begin:end], targets[begin:end] = split_losses(*own, batch=batch)
        shown.at(int(end))
    known = (targets > 0) & np.isfinite(losses)
    scores = np.where(known, np.exp(np.minimum(losses, _LARGEST)), np.nan).astype(np.float32)
    remember(store.path, out)
    write_scores(out, store, scores, split, lineage=canonical(lineage))
    finite = scores[known].astype(np.float64)
    quantiles = {str(q): float(np.quantile(finite, q)) for q in (0.25, 0.5, 0.75) if len(finite)}
    return {"examples": len(scores), "unscored": int((~known).sum()), "quantiles": quantiles}
