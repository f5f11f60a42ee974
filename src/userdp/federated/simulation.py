"""A whole federation on one machine: how its data is spread, its folders, its rounds, its loss.

Each silo's store is prepared like any other (`userdp.data.pipeline`). Coins of a record's own user
decide its silo, so that nobody's presence moves anybody else's records.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from userdp.core.errors import Interrupted, UseError
from userdp.core.files import operator_folder, whole_folder, write_file, write_json
from userdp.core.interrupts import held
from userdp.core.stages import Progress
from userdp.core.vocabulary import require_count, require_positive
from userdp.data.pipeline import prepare_store
from userdp.data.records import Record
from userdp.data.sources.source import Source
from userdp.data.splits import Split, user_hash
from userdp.data.store_tokenizer import StoreTokenizer
from userdp.data.user_store import UserStore
from userdp.federated.federation_plan import PLAN_FILE, SPREAD_FILE, STORE, FederationPlan
from userdp.federated.rounds import MODEL_FILE, Weights, load_weights, run_rounds
from userdp.federated.silo import Silo, build_model, put_weights, silo_folder, weights_of
from userdp.ledger import StoreLedger
from userdp.plans import Plan
from userdp.sampling.base import Indices
from userdp.training.devices import AUTO, choose_device
from userdp.training.store_losses import evaluate

HELD_OUT = 0.2
"""Of each subject's items, for the operators' tests: 80/20, as in Marathe et al. 2023."""


def places(
    user: bytes, records: int, *, silos: int, most: int, seed: int = 0, alpha: float | None = None
) -> Indices:
    """The silos in which a user's records lie: int64 (records,), each below ``silos``.

    Guarantee (invariant 11): a function of the user's id, the number of the record among the
    user's, and public constants. At most ``most`` silos hold anything of the user.

    Args:
        user: the user's id.
        records: number of the user's records.
        silos: n.
        most: s, at most n.
        seed: public.
        alpha: None: each of the user's s silos is equally likely. Else the silo ⌊s x⌋ with x of
            density α x^(α-1) on [0, 1], in an order of the silos of the user's own: the larger
            α, the more of a user's records lie in one silo, and all silos stay alike.

    Source: Marathe et al. 2023, Sections 5.1 and 5.2. The order for each subject is our reading:
    with it the largest group of a mini-batch grows with α as published, with one order for all it
    does not.
    """
    draw = np.random.default_rng([seed, int.from_bytes(user_hash(user))])
    order = draw.permutation(require_count("silos", silos))[:most]
    if alpha is None:
        ranks = draw.integers(most, size=records)
    else:
        require_positive("alpha", alpha)
        ranks = np.minimum((most * draw.power(alpha, records)).astype(np.int64), most - 1)
    return np.asarray(order[ranks], dtype=np.int64)


def spread(
    records: Iterable[Record], *, silos: int, most: int, seed: int = 0, alpha: float | None = None
) -> list[list[Record]]:
    """The records of each silo, every user's as `places` says; a user's keep their order.

    Raises:
        UseError: a silo has none: it could only add noise. A silo without subjects is refused
            here, before a federation runs: a refusal would then tell the server who is there.
    """
    of_users: dict[bytes, list[Record]] = {}
    for record in records:
        of_users.setdefault(record.user, []).append(record)
    parts: list[list[Record]] = [[] for _ in range(silos)]
    for user, own in of_users.items():
        where = places(user, len(own), silos=silos, most=most, seed=seed, alpha=alpha)
        for silo, record in zip(where.tolist(), own, strict=True):
            parts[silo].append(record)
    for silo, part in enumerate(parts):
        if not part:
            raise UseError(
                f"silo {silo} has no subjects: it could only add noise",
                hint="spread the data over fewer silos",
            )
    return parts


def make_store(
    records: Sequence[Record], out: Path, *, tokenizer: StoreTokenizer, seq_len: int
) -> None:
    """The user store of one silo, from its records; those of several owners go to the first."""
    source = Source(
        kind="federation",
        places=(records,),
        read=lambda records, at: iter(records),
        several_owners=True,
        loss_mask=records[0].pieces is not None,
    )
    prepare_store(
        source,
        out,
        tokenizer=tokenizer,
        seq_len=seq_len,
        held_out_users=0.0,
        held_out_examples=HELD_OUT,
    )


def make_federation(
    folder: Path,
    plan: FederationPlan,
    records: Sequence[Record],
    *,
    tokenizer: StoreTokenizer,
    seed: int = 0,
) -> None:
    """Write the plan, and a folder for each silo with its store and the plan; or nothing.

    Args:
        folder: is made.
        plan: the federation's.
        records: all silos' together, spread by `places`.
        tokenizer: the one that the plan's model reads.
        seed: of the spread; public.

    Raises:
        UseError: the folder exists, or a silo has no subjects.
    """
    if folder.exists():
        raise UseError(
            f"there is something at {folder} already, and a federation is never written over it: "
            "the ledgers of its silos say what their people paid",
            hint="choose another --out",
        )
    parts = spread(records, silos=plan.silos, most=plan.silos_per_subject, seed=seed)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(folder) as made:
        plan.save(made / PLAN_FILE)
        write_json(made / SPREAD_FILE, {"plan": plan.digest})
        write_file(made / "tokenizer.json", tokenizer.content)
        for index, part in enumerate(parts):
            place = silo_folder(made, index)
            operator_folder(place)
            plan.save(place / PLAN_FILE)
            make_store(part, place / STORE, tokenizer=tokenizer, seq_len=plan.model.seq_len)


def run_in_process(
    folder: Path, plan: FederationPlan, *, device: str = AUTO, progress: Progress | None = None
) -> Weights:
    """The rounds that remain with the silos of a folder, one silo after the other.

    The steps are those of a deployment. What was stopped goes on after its last round: a silo
    that has released its update of the next one answers with it, and one that was killed in the
    middle of its steps sits that round out.

    Args:
        folder: made by `make_federation`.
        plan: its plan.
        device: see `userdp.training.devices`.
        progress: is told how many rounds are done.

    Raises:
        Interrupted: by Ctrl-C or SIGTERM, when a silo has finished the steps that it had begun.
    """
    model, loss = build_model(plan.model)
    model = model.to(choose_device(device))
    with held() as signals, ExitStack() as closing:
        places = [silo_folder(folder, index) for index in range(plan.silos)]
        silos = [Silo(place, index, model, loss) for index, place in enumerate(places)]
        for silo in silos:
            closing.callback(silo.close)

        def ask(number: int, asked: tuple[int, ...], weights: Weights) -> dict[int, Weights]:
            updates = {}
            for index in asked:
                if signals.heard:
                    place = f"in round {number} of {plan.rounds}, between two silos"
                    raise Interrupted(place, resume=True)
                if not silos[index].sits_out(number):
                    updates[index] = silos[index].run_round(number, weights)
            return updates

        return run_rounds(folder, plan, weights_of(model), ask, progress=progress)


def measure(folder: Path, plan: FederationPlan, *, device: str = AUTO) -> dict[str, float]:
    """The loss of the federation's model on all silos' held-out items. Exact, so operator-only.

    Args:
        folder: of the federation.
        plan: its plan.
        device: see `userdp.training.devices`.

    Returns:
        The mean ``loss``; ``held_out_items``; and how many items the cap leaves out.
    """
    model, loss = build_model(plan.model)
    model = model.to(choose_device(device))
    put_weights(model, load_weights(folder / MODEL_FILE)[0])
    found, over = [], 0.0
    for index in range(plan.silos):
        store = UserStore.open(silo_folder(folder, index) / STORE)
        if isinstance(plan.local, Plan):
            counts = store.split(Split.TRAIN).counts
            over += float(np.maximum(counts - plan.local.sampling.group_size, 0).sum())
        if len(store.split(Split.HELD_OUT_EXAMPLES).counts):
            StoreLedger(store.path).look("evaluate")
            found.append(evaluate(model, store, Split.HELD_OUT_EXAMPLES, loss=loss)[0])
    losses = math.fsum(one["loss"] * one["tokens"] for one in found)
    return {
        "loss": losses / max(1, sum(one["tokens"] for one in found)),
        "held_out_items": math.fsum(one["examples"] for one in found),
        "items_left_out_by_the_cap": over,
    }
