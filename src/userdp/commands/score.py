"""``userdp store score``: perplexity of examples by a public model, to choose what trains."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from userdp.commands.progress import shown
from userdp.core.stages import Progress
from userdp.data.user_store import UserStore
from userdp.training.score_store import score_store


def score(
    store: str | os.PathLike[str],
    *,
    out: str | os.PathLike[str],
    model: str = "bundled",
    micro_batch: int = 32,
    overwrite: bool = False,
    device: str = "auto",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Score each training example by its perplexity.

    The file is for the operator (mode 0600): scores are exact functions of people's text, and no
    epsilon covers them. It belongs to this store's content and to no other.

    Example::

        userdp store score store --out scores.arrow

    Args:
        store: a user store, or its folder.
        out: the file of scores.
        model: bundled, a folder, or a name on the hub. It must have been trained on public data
            only: a model of these people's text would let one of them choose what is trained on
            of another.
        micro_batch: examples in one pass.
        overwrite: replace the file at out.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
        progress: is told how many examples are done; by default a bar.

    Returns:
        Operator-only: how many examples were scored, how many have no number, and quantiles.

    Raises:
        UseError: out is in use, the store has no training examples, or the model cannot read its
            tokens or was trained on people's text.
    """
    with shown(progress) as bar:
        # Scoring claims nothing, so that it may read a store of any adjacency.
        scored = score_store(
            UserStore.open(Path(store), fixed_graph=True),
            model,
            Path(out),
            batch=micro_batch,
            overwrite=overwrite,
            device=device,
            progress=bar,
        )
    given = {"store": str(store), "scores": str(out), "model": model}
    return {**given, "operator_only": True, **scored}
