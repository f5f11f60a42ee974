"""Measure a finished run's released model: exactly, for its operator, or under DP."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from userdp import files
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.errors import FailureError, UseError
from userdp.ledger import RunFolder
from userdp.queries.means import ReleasedMean, release_means
from userdp.training.config import train_config
from userdp.training.evaluation import evaluate, user_losses
from userdp.training.models import load_model, read_model, require_fit


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
        most_users: reads so many users alone, chosen by hash.

    Returns:
        ``split``, ``users``, ``examples``, and an `Evaluation` as a dict under ``model`` (and
        under ``base``).
    """
    (found,) = evaluate_splits(
        run, store, (split,), with_base=with_base, batch=batch, most_users=most_users
    )
    return found


def evaluate_splits(
    run: Path,
    store: UserStore,
    splits: Sequence[Split],
    *,
    with_base: bool = True,
    batch: int = 32,
    most_users: int | None = None,
) -> list[dict[str, Any]]:
    """`evaluate_run` for several splits; each model is read once."""
    folder = RunFolder(run)
    models = _models(folder, store, with_base=with_base)
    results: list[dict[str, Any]] = [{} for _ in splits]
    for of, model in models.items():
        for split, result in zip(splits, results, strict=True):
            found = evaluate(model, store, split, batch=batch, most_users=most_users)
            result |= {"split": found.split, "users": found.users, "examples": found.examples}
            result[of] = found.to_dict()
            folder.log({"kind": "final evaluation", "of": of, **found.to_dict()})
    return results


def held_out_splits(store: UserStore) -> tuple[Split, ...]:
    """The held-out parts that the store has; `UseError` if it has none."""
    held = (Split.HELD_OUT_USERS, Split.HELD_OUT_EXAMPLES)
    found = tuple(split for split in held if len(store.split(split).counts))
    if not found:
        raise UseError(
            f"the store at {store.path} holds nothing out: there is no loss to measure on text "
            "that was not trained on",
            hint="prepare it with --held-out-users 0.1, or measure on --split train",
        )
    return found


def release_evaluation(
    run: Path,
    store: UserStore,
    split: Split,
    *,
    epsilon: float,
    loss_bound: float | None = None,
    with_base: bool = True,
    batch: int = 32,
) -> dict[str, Any]:
    """The mean over users of each one's loss, under DP: a number that may be published.

    Guarantee: (``epsilon``, 0)-DP per user of ``store``, add-or-remove, beyond what the run cost;
    charged in the store's ledger before it is drawn. The result stands in RUN/releases.jsonl too.

    Args:
        run: a run's folder, finished.
        store: whose people are asked, and charged.
        split: whose users.
        epsilon: of all released here together.
        loss_bound: a public bound, in nats per token; larger losses count as so much. By default
            the loss of guessing every token of the vocabulary alike.
        with_base: also release that of the model which the run began from, at part of ``epsilon``.
        batch: most examples in one pass.

    Raises:
        UseError: bad arguments, or a store for which the mechanism promises nothing.
        FailureError: the disk refused; what was released is in the store's ledger.
    """
    folder = RunFolder(run)
    bound = math.log(store.meta.vocab_size) if loss_bound is None else loss_bound
    models = _models(folder, store, with_base=with_base)
    values = {of: user_losses(model, store, split, batch=batch) for of, model in models.items()}
    found = release_means(store, values, bound=bound, epsilon=epsilon, subject=f"loss on {split}")
    result = {
        "kind": "evaluation",
        "split": str(split),
        "statistic": "mean over users of each user's mean loss per token, in nats",
        "loss_bound": bound,
        "epsilon": epsilon,
        "delta": 0.0,
        "unit": "user",
        "adjacency": "add-or-remove",
        "released_users": found.users,
        **{of: _released(mean) for of, mean in found.means.items()},
        "query_ids": list(found.query_ids),
    }
    _append(folder.releases, result)
    return result


def _released(mean: ReleasedMean) -> Mapping[str, float]:
    return {
        "user_loss": mean.value,
        "standard_error": mean.standard_error,
        "perplexity": math.exp(min(mean.value, 700.0)),
    }


def _models(folder: RunFolder, store: UserStore, *, with_base: bool) -> dict[str, nn.Module]:
    """The released model under ``model``, and what it began from under ``base``."""
    config = train_config(folder.read_train())
    if not folder.model.is_dir():
        raise UseError(
            f"the run at {folder.path} has released no model yet",
            hint="go on with it: userdp train STORE --out RUN --resume",
        )
    model = read_model(str(folder.model))
    require_fit(model, str(folder.model), store)
    return {"model": model, **({"base": load_model(config, store)} if with_base else {})}


def _append(path: Path, values: Mapping[str, Any]) -> None:
    line = json.dumps(values, separators=(",", ":"), allow_nan=False).encode() + b"\n"
    try:
        files.write_file(path, (path.read_bytes() if path.exists() else b"") + line)
    except FailureError as error:
        raise FailureError(
            f"{error.message}. What was released is in the store's ledger, and is charged there",
            hint=error.hint,
        ) from error
