"""The constants of a run by one digest, for whoever records them before the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from userdp.claims.weights import digest_of
from userdp.codec import digest, encode
from userdp.data.scores import digest_of_scores
from userdp.data.store import UserStore
from userdp.plans import Plan
from userdp.training.models import resolve


def constants_digest(
    plan: Plan | None,
    train: Mapping[str, Any] | None,
    store: UserStore,
    *,
    scores: Path | None = None,
) -> str:
    """What `StoreLedger.declare` records beforehand of a run, and what a slot is for.

    Its plan and options (but for where it computes, which decides nothing of what is learned); and
    the text, the base model and the scores themselves, since whoever exchanges one of them after a
    look has chosen it by the look.
    """
    name = str((train or {}).get("model", ""))
    base = Path(resolve(name)) if name else None
    files_there = base is not None and any(base.glob("*.safetensors"))
    return digest(
        {
            "plan": encode(plan),
            "train": {name: value for name, value in (train or {}).items() if name != "device"},
            "text": store.meta.content_sha256,
            "base": digest_of(base) if base is not None and files_there else "",
            "scores": None if scores is None else digest_of_scores(scores),
        }
    )
