"""Measure a finished run's released model: exactly, for its operator, or under DP."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from userdp.claims import Claim, claim
from userdp.claims.claims import compose
from userdp.claims.verify import require_released_files
from userdp.data.progress import NoProgress, Progress, Uncounted
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.errors import FailureError, UseError
from userdp.ledger import RunFolder, StoreLedger
from userdp.ledger.run import append_release
from userdp.queries.comparison import (
    DEFAULT_BOUND,
    ReleasedComparison,
    release_comparison,
    require_difference_bound,
)
from userdp.queries.means import ReleasedMeans, release_means
from userdp.training.devices import AUTO, choose_device
from userdp.training.evaluation import measure, paired, user_losses
from userdp.training.origin import for_people_of
from userdp.training.run_models import released_models


def evaluate_splits(
    run: Path,
    store: UserStore,
    splits: Sequence[Split],
    *,
    with_base: bool = True,
    batch: int = 32,
    most_users: int | None = None,
    device: str = AUTO,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Loss and perplexity of ``run``'s released model, and of the model it began from.

    The result, operator-only, is appended to the run's operator.jsonl.

    Args:
        run: a run's folder, finished.
        store: with the tokenizer that the run was trained on.
        splits: which parts to measure on.
        with_base: also measure the model that the run began from.
        batch: examples in one pass.
        most_users: reads only so many users, chosen by hash.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
        progress: is told how many examples are done; operator-only.

    Returns:
        For each split ``split``, ``users``, ``examples``, and an `Evaluation` as a dict under
        ``model`` (and under ``base``, with a `Difference` as a dict under ``difference``).
    """
    folder, computes = RunFolder(run), choose_device(device)
    models = released_models(folder, store, with_base=with_base, device=computes)
    StoreLedger(store.path).look("evaluate")  # not before it is known that there is a model
    results: list[dict[str, Any]] = [{} for _ in splits]
    each: dict[tuple[str, Split], NDArray[np.float64]] = {}
    for of, model in models.items():
        for split, result in zip(splits, results, strict=True):
            measured, each[of, split] = measure(
                model, store, split, batch=batch, most_users=most_users, progress=progress
            )
            evaluation = asdict(measured)
            result |= {name: evaluation[name] for name in ("split", "users", "examples")}
            result[of] = evaluation
            folder.log({"kind": "final evaluation", "of": of, **evaluation})
    for split, result in zip(splits, results, strict=True):
        if ("base", split) in each:
            difference = asdict(paired(each["model", split], each["base", split]))
            result["difference"] = difference
            folder.log({"kind": "paired difference", "split": str(split), **difference})
    return results


def held_out_splits(store: UserStore) -> tuple[Split, ...]:
    """The held-out parts that the store has; `UseError` if it has none."""
    held = (Split.HELD_OUT_USERS, Split.HELD_OUT_EXAMPLES)
    splits = tuple(split for split in held if len(store.split(split).counts))
    if not splits:
        raise UseError(
            f"the store at {store.path} holds nothing out: there is no loss to measure on text "
            "that was not trained on",
            hint="prepare it with --held-out-users 0.1, or measure on --split train",
        )
    return splits


def release_evaluation(
    run: Path,
    store: UserStore,
    split: Split,
    *,
    epsilon: float,
    loss_bound: float | None = None,
    difference_bound: float | None = None,
    with_base: bool = True,
    batch: int = 32,
    device: str = AUTO,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """The mean over users of each one's loss, under DP: a number that may be published.

    With the base model, that of the difference of each one's losses, see
    `userdp.queries.comparison`: the base model's own mean is not released, which would say less of
    which of them is better, for as much.

    Guarantee: (``epsilon``, 0)-DP per user of ``store``, add-or-remove, beyond what the run cost;
    charged in the store's ledger before it is drawn. The result is a line of the run's ledger too.

    Args:
        run: a run's folder, finished.
        store: whose people are asked, and charged.
        split: whose users.
        epsilon: of all released here together.
        loss_bound: a public bound, in nats per token; larger losses count as so much. By default
            the loss of guessing every token of the vocabulary alike.
        difference_bound: a public bound on a user's difference, stated before any is looked at;
            `DEFAULT_BOUND` by default.
        with_base: also release the difference to the model which the run began from, at part of
            ``epsilon``.
        batch: most examples in one pass.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
        progress: is told what is done, and no number of it: how many users there are is private.

    Raises:
        UseError: bad arguments, a model of which nothing is claimed (its exact weights would be
            measured at the price of their noise alone), or a store for which the mechanism
            promises nothing.
        FailureError: the disk refused; what was released is in the store's ledger.
    """
    folder, computes = RunFolder(run), choose_device(device)
    claimed = require_claim(folder)
    lineage = for_people_of(claimed.lineage, store)
    if not math.isfinite(compose(lineage).epsilon):
        raise UseError(
            f"the model of {folder.path} descends from a model of which nothing is claimed, and of "
            "people of whom nobody declared that they are not in this store",
            hint="evaluate it without --epsilon, for its operator alone",
        )
    bound = math.log(store.meta.vocab_size) if loss_bound is None else loss_bound
    widest = DEFAULT_BOUND if difference_bound is None else difference_bound
    require_difference_bound(widest)
    require_released_files(folder)
    models = released_models(folder, store, with_base=with_base, device=computes)
    Uncounted(progress or NoProgress()).stage("evaluate", None)
    values = {of: user_losses(model, store, split, batch=batch) for of, model in models.items()}
    asked: dict[str, Any] = {"epsilon": epsilon, "subject": f"loss on {split}", "of": lineage}
    difference: dict[str, Any] = {}
    released: ReleasedMeans | ReleasedComparison
    if with_base:
        released = release_comparison(
            store, values["model"], values["base"],
            loss_bound=bound, difference_bound=widest, **asked,
        )  # fmt: skip
        mean, found = released.model, released.difference
        difference["difference"] = {
            "user_loss": found.value,
            "standard_error": found.standard_error,
            "noise_error": found.noise_error,
            "bound": found.bound,
        }
    else:
        released = release_means(store, values, bound=bound, **asked)
        mean = released.means["model"]
    result = {
        "what": "evaluation",
        "split": str(split),
        "statistic": "mean over users of each user's mean loss per token, in nats",
        "loss_bound": bound,
        "epsilon": epsilon,
        "delta": 0.0,
        "unit": "user",
        "adjacency": "add-or-remove",
        "released_users": released.users,
        "model": {
            "user_loss": mean.value,
            "standard_error": mean.standard_error,
            "perplexity": math.exp(min(mean.value, 700.0)),
        },
        **difference,
        "query_ids": list(released.query_ids),
    }
    try:
        append_release(folder.ledger, result)
    except FailureError as error:
        raise FailureError(
            f"{error.message}. What was released is in the store's ledger, and is charged there",
            hint=error.hint,
        ) from error
    return result


def require_claim(folder: RunFolder) -> Claim:
    """A run's claim; numbers of a model of which nothing is claimed may not be released.

    Raises:
        UseError: the run has no ε, or it is a trial that lost, or that has not won yet.
    """
    claimed = claim(folder.path)
    if not claimed.finite:
        what = "a trial of a private selection" if claimed.trial else claimed.composition
        raise UseError(
            f"nothing is claimed of the model of {folder.path} ({what}): its weights may hold "
            "people's text as it is, so that the price of a release would be no bound",
            hint="evaluate it without --epsilon, for its operator alone",
        )
    return claimed
