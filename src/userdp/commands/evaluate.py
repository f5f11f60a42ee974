"""``userdp.evaluate``: a model's loss on people's text: exact for its operator, or under DP."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from userdp.commands.arguments import folder_of, refuse
from userdp.commands.progress import shown
from userdp.core.errors import Interrupted, UseError
from userdp.core.interrupts import on_interrupt
from userdp.core.stages import Progress
from userdp.core.vocabulary import require_count
from userdp.data.splits import Split
from userdp.data.user_store import UserStore
from userdp.training.devices import choose_device
from userdp.training.evaluation import evaluate_splits, held_out_splits, release_evaluation
from userdp.training.personalization import LocalTraining, personalize_run


def evaluate(
    run: str | os.PathLike[str],
    *,
    store: str | os.PathLike[str],
    split: Sequence[Split] = (),
    base: bool = True,
    micro_batch: int = 32,
    most_users: int | None = None,
    epsilon: float | None = None,
    loss_bound: float | None = None,
    difference_bound: float | None = None,
    personalize: bool = False,
    lora_rank: int | None = None,
    device: str = "auto",
    local: LocalTraining | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Measure a run's loss on people's text: exactly, or under DP.

    By split, per token and per user, next to the model that the run began from. Without epsilon
    the numbers are exact, so no epsilon covers them: they are appended to RUN/operator.jsonl, which
    is for the operator only. With it, the model's mean loss per user, and the mean difference to
    the base model's, are released after they were charged in the store's privacy ledger, as
    (epsilon, 0)-DP per user; they stand in the run's ledger, with what they cost together with the
    model, and may be published.

    Example::

        userdp evaluate run --store store

    Args:
        run: a finished run, or its folder.
        store: the user store to measure on.
        split: held-out-users (nothing of theirs was trained on), held-out-examples (of training
            users) or train, one or several; by default both held-out parts, and with epsilon
            held-out-users.
        base: also measure the model that the run began from, and the difference of each user's
            two losses, with its standard error.
        micro_batch: examples in one pass.
        most_users: read at most so many users of a split, chosen by a hash of the user.
        epsilon: release under DP at this price, per user, add-or-remove.
        loss_bound: with epsilon, a public bound in nats per token: a larger loss counts as the
            bound. By default the loss of guessing all tokens of the vocabulary alike.
        difference_bound: with epsilon, a public bound on how much a user's loss differs from that
            under the base model, stated before anything is measured: more counts as so much. By
            default 1 nat per token.
        personalize: measure what held-out users gain from a model of their own: local SGD on half
            of each user's examples, then the loss on the other half, with and without (Charles et
            al. 2024, Appendix G.2). Nothing is released or charged.
        lora_rank: personalize adapters of this rank in place of all weights.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
        local: how the models of their own are trained.
        progress: receives the progress (with epsilon no number, since how many users there are is
            private); by default a bar, or lines where stderr is no terminal.

    Returns:
        Exact numbers of each of the ``splits``, ``operator_only``: of the ``model`` and of the
        ``base`` model that the run began from, and the ``difference``; or what was released, or
        what held-out users gain from a model of their own, by name.

    Raises:
        UseError: an argument is out of range, or nothing may be released of this model.
    """
    require_count("micro_batch", micro_batch)  # before a look is noted in the store's ledger
    choose_device(device)
    path = folder_of(run)
    splits = [*dict.fromkeys(Split(one) for one in ([split] if isinstance(split, str) else split))]
    bounds = {"loss_bound": loss_bound, "difference_bound": difference_bound}
    private = epsilon is not None
    refuse({
        "local.… says nothing without --personalize": local is not None and not personalize,
        "--lora-rank is of users' own models: add --personalize": lora_rank and not personalize,
        "--personalize measures held-out users: leave --split out": personalize
        and splits not in ([], [Split.HELD_OUT_USERS]),
        "loss_bound and difference_bound need --epsilon": not private and any(bounds.values()),
        "--personalize measures exactly: nothing is released under DP": private and personalize,
        "--no-base leaves out what --difference-bound bounds": difference_bound and not base,
        "--epsilon releases one split at a time: name one --split": private and len(splits) > 1,
        "--most-users reads the smallest hashes, so that one user more takes another's place: no "
        "epsilon for one user would hold": private and most_users is not None,
    })  # fmt: skip
    for name, bound in bounds.items():
        _require_round(name, bound)
    people = UserStore.open(Path(store), fixed_graph=not private)  # exact numbers claim nothing
    left = "before its end: what was charged stays charged" if private else "before its end"
    with on_interrupt(Interrupted(left)), shown(progress) as bar:
        how: dict[str, Any] = {"with_base": base, "device": device, "progress": bar}
        if epsilon is not None:
            how |= {"epsilon": epsilon, "batch": micro_batch, **bounds}
            part = (splits or [Split.HELD_OUT_USERS])[0]
            released = release_evaluation(path, people, part, **how)
            return {"run": path, "operator_only": False, **released}
        how["most_users"] = most_users
        if personalize:
            how["lora_rank"] = lora_rank
            gained = personalize_run(path, people, local or LocalTraining(), **how)
            return {"run": path, "operator_only": True, **gained}
        splits = splits or [*held_out_splits(people)]
        measured = evaluate_splits(path, people, splits, batch=micro_batch, **how)
        return {"run": path, "operator_only": True, "splits": measured}


def _require_round(name: str, bound: float | None) -> None:
    """`UseError` of a bound with more digits than anybody states without having looked.

    A bound is published beside the answer. One that was copied from an exact loss would publish
    that loss, and no ε covers it.
    """
    if bound is not None and math.isfinite(bound) and bound != float(f"{bound:.2g}"):
        raise UseError(
            f"{name} has more than two digits that count: {bound!r}. It is published, and says "
            "something exact about these people if it was read off their losses",
            hint=f"state one without a look, such as {float(f'{bound:.1g}'):g}",
        )
