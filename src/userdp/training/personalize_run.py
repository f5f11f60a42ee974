"""Personalize a finished run's model to held-out users, and note it for the operator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from userdp.data.progress import Progress
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.errors import UseError
from userdp.ledger import RunFolder
from userdp.training.config import TrainConfig, train_config
from userdp.training.lora import add_adapters
from userdp.training.models import load_model, read_model, require_fit
from userdp.training.personalization import (
    LocalTraining,
    Personalized,
    local_users,
    personalize,
    traceable,
)
from userdp.vocabulary import require_count

_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


def personalize_run(
    run: Path,
    store: UserStore,
    ways: Sequence[LocalTraining],
    *,
    with_base: bool = False,
    lora_rank: int | None = None,
    most_users: int | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """What each held-out user gains from local SGD, for every one of ``ways``.

    The result, operator-only, is appended to the run's operator.jsonl.

    Args:
        run: a run's folder, finished.
        store: with the tokenizer that the run was trained on.
        ways: learning rates to compare; all else is the same in each.
        with_base: also personalize the model that the run began from.
        lora_rank: adapt adapters of this rank in place of all weights.
        most_users: the first so many users alone.
        device: None for cuda where there is one, else cpu.
        progress: is told how many users are done.

    Returns:
        ``users``, what was left out, and for ``model`` (and ``base``) a list with one entry for
        each way: token-weighted and user-weighted loss before and after, and quantiles over users.

    Raises:
        UseError: the run has no model, or nobody held out has two examples.
    """
    folder = RunFolder(run)
    config = train_config(folder.read_train())
    if not folder.model.is_dir():
        raise UseError(
            f"the run at {run} has released no model yet",
            hint="go on with it: userdp train STORE --out RUN --resume",
        )
    if most_users is not None:
        require_count("most_users", most_users)
    split = store.split(Split.HELD_OUT_USERS)
    users, dropped = local_users(split, ways[0])
    if not users:
        raise UseError(
            "no held-out user has two examples: there is nobody to personalize to",
            hint="prepare the store with --held-out-users 0.1",
        )
    models = {"model": read_model(str(folder.model))}
    require_fit(models["model"], str(folder.model), store)
    if with_base:
        models["base"] = load_model(config, store).float()
    kept = users[:most_users]
    result: dict[str, Any] = {
        "users": len(kept),
        "users_left_unread": len(users) - len(kept),
        **dropped,
        "epochs": ways[0].epochs,
        "batch_size": ways[0].batch_size,
        "adapted": "all weights" if lora_rank is None else f"adapters of rank {lora_rank}",
    }
    adapters = TrainConfig(lora_rank=lora_rank)
    for name, model in models.items():
        ready = traceable(add_adapters(_on(model, device), adapters))
        result[name] = []
        for how in ways:
            found = personalize(ready, split, kept, how, progress=progress)
            entry = {"learning_rate": how.learning_rate, **summary(found)}
            result[name].append(entry)
            folder.log({"kind": "personalization", "of": name, **entry})
    return result


def summary(found: Personalized) -> dict[str, Any]:
    """Means and quantiles of a `Personalized`; users without a target token are left out."""
    measured = found.tokens > 0
    before, after = found.before[measured], found.after[measured]
    tokens = found.tokens[measured]
    gains = before - after
    finite = gains[np.isfinite(gains)]
    return {
        "measured_users": int(measured.sum()),
        "tokens": int(tokens.sum()),
        "loss_without": float(np.average(before, weights=tokens)) if len(before) else None,
        "loss_with": _finite(np.average(after, weights=tokens)) if len(after) else None,
        "user_loss_without": float(before.mean()) if len(before) else None,
        "user_loss_with": _finite(after.mean()) if len(after) else None,
        "users_who_gain": int((gains > 0).sum()),
        "gain_quantiles": {str(q): float(np.quantile(finite, q)) for q in _QUANTILES}
        if len(finite)
        else {},
    }


def _finite(value: float) -> float | None:
    """None where a learning rate was too large and a loss went to infinity."""
    return float(value) if np.isfinite(value) else None


def _on(model: nn.Module, device: str | None) -> nn.Module:
    return model.to(device or ("cuda" if torch.cuda.is_available() else "cpu"))
