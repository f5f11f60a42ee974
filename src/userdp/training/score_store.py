"""Perplexity of each training example under a model of public data, for `userdp.data.selection`.

A user's selection may depend only on that user's text and on public data (invariant 11), so the
model must not have been trained on the store: its scores would let one user's text decide which
examples of another are trained on.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from userdp.core.codec import canonical
from userdp.core.errors import UseError
from userdp.core.files import require_new
from userdp.core.stages import NoProgress, Progress
from userdp.core.vocabulary import require_count
from userdp.data.example_scores import write_scores
from userdp.data.splits import Split
from userdp.data.store_folder import Place, remember
from userdp.data.user_store import UserStore
from userdp.ledger import StoreLedger
from userdp.training.causal_models import read_model
from userdp.training.devices import AUTO, choose_device
from userdp.training.model_origin import lineage_of_model
from userdp.training.store_losses import rows_of, split_losses

_LARGEST = math.log(np.finfo(np.float32).max)
"""The largest loss whose perplexity the file can hold."""


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
        progress: shows how many examples are done.

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
    shown = progress or NoProgress()
    shown.stage("score", len(users))
    scorer = scorer.to(computes)
    losses, targets = split_losses(scorer, part, users, examples, batch=batch, done=shown.at)
    known = (targets > 0) & np.isfinite(losses)
    scores = np.where(known, np.exp(np.minimum(losses, _LARGEST)), np.nan).astype(np.float32)
    remember(store.path, Place.SCORES, out)
    write_scores(out, store, scores, split, lineage=canonical(lineage))
    finite = scores[known].astype(np.float64)
    quantiles = {str(q): float(np.quantile(finite, q)) for q in (0.25, 0.5, 0.75) if len(finite)}
    return {"examples": len(scores), "unscored": int((~known).sum()), "quantiles": quantiles}
