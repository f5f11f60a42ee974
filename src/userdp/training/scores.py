"""Perplexity of each training example under a model of public data, for `userdp.data.selections`.

A user's selection may depend only on that user's text and on public data (invariant 11), so the
model must not have been trained on the store: its scores would let one user's text decide which
examples of another are trained on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from userdp.codec import canonical
from userdp.data.places import Place, remember
from userdp.data.progress import NoProgress, Progress
from userdp.data.scores import write_scores
from userdp.data.splits import Split
from userdp.data.store import StoreSplit, UserStore
from userdp.errors import UseError
from userdp.files import require_new
from userdp.ledger import StoreLedger
from userdp.training.devices import AUTO, choose_device
from userdp.training.losses import split_losses
from userdp.training.models import read_model, require_fit, resolve
from userdp.training.origin import lineage_of_weights
from userdp.vocabulary import require_count

_BLOCK = 8192
"""Examples that are sorted by length together; their scores are one block of the file."""


def score_store(
    store: UserStore,
    model: str,
    out: Path,
    *,
    split: Split = Split.TRAIN,
    batch: int = 32,
    device: str = AUTO,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write ``exp(mean loss)`` of each example of ``split`` to ``out``, a file of mode 0600.

    Guarantee: a score depends on its own example and the model; with a loss mask, only on marked
    tokens. NaN where an example has no target or its loss is not finite. Operator-only: scores are
    exact functions of private text.

    Args:
        store: whose examples are read.
        model: "bundled", a folder, or a name on the hub; trained only on public data.
        out: the file.
        split: which examples.
        batch: examples in one pass.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
        overwrite: replace what lies at ``out``.
        progress: is told how many examples are done.

    Returns:
        ``examples``, ``unscored`` and the quartiles of the scores under ``quantiles``;
        operator-only.

    Raises:
        UseError: ``out`` is in use, the split is empty, or the model cannot read the store's tokens
            or was trained on people's text.
    """
    require_count("micro_batch", batch)
    computes = choose_device(device)
    require_new(out, overwrite=overwrite, name="scores.arrow")
    part = store.split(split)
    total = int(part.counts.sum())
    if not total:
        raise UseError(f"the store holds nothing in split {split}: there is nothing to score")
    scorer = read_model(resolve(model))
    require_fit(scorer, model, store)
    lineage = lineage_of_weights(scorer, store, resolve(model))
    if lineage.parts:
        raise UseError(
            f"the model {model!r} was trained on people's text: its scores would let one user's "
            "text choose which examples of another are trained on",
            hint="score with a model of public data, such as --model bundled",
        )
    StoreLedger(store.path).look("score")
    scorer = scorer.to(computes)
    reporter = progress or NoProgress()
    reporter.stage("score", total)
    seen: list[NDArray[np.float32]] = []

    def blocks() -> Iterator[NDArray[np.float32]]:
        for begin in range(0, total, _BLOCK):
            block = _scored(scorer, part, begin, min(begin + _BLOCK, total), batch, reporter)
            seen.append(block)
            yield block

    remember(store.path, Place.SCORES, out)
    written = write_scores(out, store, blocks(), split, lineage=canonical(lineage))
    scores = np.concatenate(seen)
    finite = scores[np.isfinite(scores)].astype(np.float64)
    quantiles = np.quantile(finite, (0.25, 0.5, 0.75)).tolist() if len(finite) else []
    return {
        "examples": written,
        "unscored": int(len(scores) - len(finite)),
        "quantiles": dict(zip(("0.25", "0.5", "0.75"), quantiles, strict=False)),
    }


def _scored(
    model: nn.Module, part: StoreSplit, begin: int, end: int, batch: int, progress: Progress
) -> NDArray[np.float32]:
    """The scores of examples ``begin:end``, numbered user by user."""
    ends = np.cumsum(part.counts)
    number = np.arange(begin, end)
    users = np.searchsorted(ends, number, side="right")
    examples = number - (ends - part.counts)[users]
    losses, targets = split_losses(
        model, part, users, examples, batch=batch, done=lambda rows: progress.at(begin + rows)
    )
    capped = np.minimum(losses, math.log(np.finfo(np.float32).max))
    known = (targets > 0) & np.isfinite(losses)
    return np.where(known, np.exp(capped), np.nan).astype(np.float32)
