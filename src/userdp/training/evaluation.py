"""Loss and perplexity of a run's released model: exactly, for its operator, or under DP."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from userdp.claims import Lineage, claim
from userdp.core.errors import UseError
from userdp.core.stages import Progress, Uncounted
from userdp.core.vocabulary import require_positive
from userdp.data.splits import Split
from userdp.data.user_store import UserStore
from userdp.ledger import RunFolder, RunRecord, StoreLedger
from userdp.ledger.run_ledger import append_release
from userdp.queries.comparison import DEFAULT_BOUND, release_losses
from userdp.training.devices import AUTO, choose_device
from userdp.training.released_model import released_models
from userdp.training.store_losses import evaluate, paired, perplexity, user_losses

_HINT = "prepare it with --held-out-users 0.1, or measure on --split train"


def held_out_splits(store: UserStore) -> tuple[Split, ...]:
    """The held-out parts that the store has; `UseError` if it has none."""
    held = (Split.HELD_OUT_USERS, Split.HELD_OUT_EXAMPLES)
    splits = tuple(split for split in held if len(store.split(split).counts))
    if not splits:
        raise UseError(f"the store at {store.path} holds nothing out", hint=_HINT)
    return splits


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
        progress: shows how many examples are done; operator-only.

    Returns:
        For each split ``split``, ``users``, ``examples``, and what `evaluate` says under ``model``
        (and under ``base``, with what `paired` says under ``difference``).
    """
    folder = RunFolder(run)
    models = released_models(folder, store, with_base=with_base, device=choose_device(device))
    StoreLedger(store.path).look("evaluate")  # not before it is known that there is a model
    results = []
    for split in splits:
        each, result = {}, {}
        for of, model in models.items():
            result[of], each[of] = evaluate(
                model, store, split, batch=batch, most_users=most_users, progress=progress
            )
            folder.log({"kind": "final evaluation", "of": of, **result[of]})
        counted = {name: result["model"][name] for name in ("split", "users", "examples")}
        if with_base:
            result["difference"] = paired(each["model"], each["base"])
            folder.log({"kind": "paired difference", "split": str(split), **result["difference"]})
        results.append({**counted, **result})
    return results


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

    With the base model, the mean difference of each user's losses under both models is released
    too (`userdp.queries.comparison`). The base model's own mean is not: for the same price it would
    say less about which model is better.

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
        progress: shows the stage but no number, since the number of users is private.

    Raises:
        UseError: bad arguments, a model of which nothing is claimed (the release would not pay for
            what its exact weights tell), or a store for which the mechanism promises nothing.
        FailureError: the disk refused; the store's ledger holds what was released.
    """
    if split is Split.HELD_OUT_USERS and not store.meta.held_out_users:  # a public setting
        raise UseError(f"the store at {store.path} holds no users out", hint=_HINT)
    record, computes = RunRecord.read(run), choose_device(device)
    lineage, folder = _claimed(record), record.folder
    bound = math.log(store.meta.vocab_size) if loss_bound is None else loss_bound
    widest = DEFAULT_BOUND if difference_bound is None else difference_bound
    require_positive("difference_bound", widest, at_most=1e6)
    models = released_models(folder, store, with_base=with_base, device=computes)
    Uncounted(progress or Progress()).stage("evaluate", None)
    values = {of: user_losses(model, store, split, batch=batch) for of, model in models.items()}
    released = release_losses(
        store,
        values["model"],
        values.get("base"),
        loss_bound=bound,
        difference_bound=widest,
        epsilon=epsilon,
        subject=f"loss on {split}",
        of=lineage,
    )
    mean = released.model
    measured = {"user_loss": mean.value, "standard_error": mean.standard_error}
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
        "model": {**measured, "perplexity": perplexity(mean.value)},
        "query_ids": list(released.query_ids),
    }
    if released.difference is not None:
        difference = {**asdict(released.difference), "bound": widest}
        result["difference"] = {"user_loss": difference.pop("value"), **difference}
    append_release(folder.ledger, result)
    return result


def _claimed(run: RunRecord) -> Lineage:
    """The lineage of a run's model; `UseError` if its exact weights have no price."""
    claimed = claim(run)
    if not claimed.finite:
        raise UseError(
            f"nothing is claimed of the model ({claimed.composition}): a release has no price",
            hint="evaluate it without --epsilon, for its operator alone",
        )
    return claimed.lineage
