"""``userdp score``: perplexity of each example under a public model, for ``train --selection``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from userdp.api.progress import shown
from userdp.cli.output import Answer, for_whom


def score(
    store: Path,
    /,
    *,
    out: Path,
    model: str = "bundled",
    micro_batch: int = 32,
    overwrite: bool = False,
    device: str = "auto",
) -> Answer:
    """Score each training example by its perplexity, for selection by highest or lowest.

    The file is for the operator (mode 0600): scores are exact functions of people's text, and no
    epsilon covers them. It belongs to this store's content and to no other.

    Args:
        store: a user store made by userdp prepare.
        out: the file of scores.
        model: bundled, a folder, or a name on the hub. It must have been trained on public data
            only: a model of these people's text would let one of them choose what is trained on
            of another.
        micro_batch: examples in one pass.
        overwrite: replace the file at --out.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
    """
    from userdp.data.store import UserStore
    from userdp.training.scores import score_store

    with shown() as bar:
        # Scoring claims nothing, so that it may read a store of any adjacency.
        scored = score_store(
            UserStore.open(store, fixed_graph=True),
            model,
            out,
            batch=micro_batch,
            overwrite=overwrite,
            device=device,
            progress=bar,
        )
    result: dict[str, Any] = {
        "store": str(store),
        "scores": str(out),
        "model": model,
        "operator_only": True,
        **scored,
    }
    return Answer(values=result, parts=_parts(result))


def _parts(result: dict[str, Any]) -> Iterator[str]:
    quantiles = result["quantiles"]
    yield (
        f"{result['examples']:,} examples scored in {result['scores']}"
        + (f", {result['unscored']:,} of them without a number" if result["unscored"] else "")
        + (f"; perplexity {quantiles['0.5']:.1f} in the median" if quantiles else "")
        + ". Use them: userdp train STORE --selection highest-perplexity "
        f"--scores {result['scores']}"
    )
    yield for_whom(
        operator_only=True, why="exact functions of people's text, which no epsilon covers"
    )
