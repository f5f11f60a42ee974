"""Measure a finished run's released model, and note it for the operator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.errors import UseError
from userdp.training.config import TrainConfig
from userdp.training.evaluation import evaluate
from userdp.training.models import load_model, read_model, require_fit
from userdp.training.runs import RunFolder


def evaluate_run(
    run: Path,
    store: UserStore,
    split: Split,
    *,
    with_base: bool = False,
    batch: int = 32,
    most_users: int | None = None,
) -> dict[str, Any]:
    """Loss and perplexity of ``run``'s released model, and of the model it began from.

    The result, operator-only, is appended to the run's operator.jsonl.

    Args:
        run: a run's folder, finished.
        store: with the tokenizer that the run was trained on.
        split: which part to measure on.
        with_base: also measure the model that the run began from.
        batch: examples in one pass.
        most_users: reads the first so many users alone.

    Returns:
        ``split``, ``users``, ``examples``, and an `Evaluation` as a dict under ``model`` (and
        under ``base``).
    """
    folder = RunFolder(run)
    config = TrainConfig.from_dict(folder.read_config().get("train", {}))
    if not folder.model.is_dir():
        raise UseError(
            f"the run at {run} has released no model yet",
            hint="go on with it: userdp train STORE --out RUN --resume",
        )
    model = read_model(str(folder.model))
    require_fit(model, str(folder.model), store)
    found = evaluate(model, store, split, batch=batch, most_users=most_users)
    result: dict[str, Any] = {
        "split": found.split,
        "users": found.users,
        "examples": found.examples,
        "model": found.to_dict(),
    }
    folder.log({"kind": "final evaluation", "of": "model", **found.to_dict()})
    if with_base:
        base = evaluate(load_model(config, store), store, split, batch=batch, most_users=most_users)
        result["base"] = base.to_dict()
        folder.log({"kind": "final evaluation", "of": "base", **base.to_dict()})
    return result
