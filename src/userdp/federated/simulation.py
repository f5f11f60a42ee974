"""A whole federation on one machine: its folders, its rounds, its claim, and its loss."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from userdp.claims import Claim
from userdp.core.errors import UseError
from userdp.core.files import operator_folder, read_json, whole_folder, write_file, write_json
from userdp.core.interrupts import held
from userdp.core.stages import Progress
from userdp.data.records import Record
from userdp.data.splits import Split
from userdp.data.tokenize import StoreTokenizer
from userdp.data.user_store import UserStore
from userdp.federated.federation_claim import federation_claim
from userdp.federated.federation_models import build_model, put_weights, weights_of
from userdp.federated.federation_plan import PLAN_FILE, RUN, STORE, FederationPlan
from userdp.federated.rounds import MODEL_FILE, Answers, Weights, load_weights, run_rounds
from userdp.federated.silo import Silo, silo_folder
from userdp.federated.spreading import make_store, spread
from userdp.plans import Plan
from userdp.training.devices import AUTO, choose_device
from userdp.training.store_losses import evaluate

SPREAD_FILE = "spread.json"
"""Says that the items of all silos were spread here, by the plan's bound on a subject's silos."""


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
        records: all silos' together, spread by `userdp.federated.spreading.places`.
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
        silos = [Silo(place, n, model=model, loss=loss) for n, place in enumerate(places)]
        for silo in silos:
            closing.callback(silo.close)

        def ask(number: int, asked: tuple[int, ...], weights: Weights) -> Answers:
            updates = {}
            for index in asked:
                signals.check(f"in round {number} of {plan.rounds}, between two silos", resume=True)
                if not silos[index].sits_out(number):
                    updates[index] = silos[index].run_round(number, weights)
            return updates, {}

        return run_rounds(folder, plan, weights_of(model), ask, progress=progress)


def claim_of(folder: Path) -> Claim:
    """The claim of the federation in a folder, from the ledgers of its silos that lie there."""
    runs = sorted(path.parent for path in folder.glob(f"silo-*/{RUN}/ledger.jsonl"))
    plan = FederationPlan.load(folder / PLAN_FILE)
    mark, deployed = folder / SPREAD_FILE, (folder / "app").exists()
    here = mark.exists() and read_json(mark, what="a spread").get("plan") == plan.digest
    return federation_claim(plan, runs, spread=here and not deployed)


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
    losses = targets = items = over = 0.0
    for index in range(plan.silos):
        store = UserStore.open(silo_folder(folder, index) / STORE)
        if isinstance(plan.local, Plan):
            counts = store.split(Split.TRAIN).counts
            over += float(np.maximum(counts - plan.local.sampling.group_size, 0).sum())
        if len(store.split(Split.HELD_OUT_EXAMPLES).counts):
            found, _ = evaluate(model, store, Split.HELD_OUT_EXAMPLES, loss=loss)
            losses += found["loss"] * found["tokens"]
            targets, items = targets + found["tokens"], items + found["examples"]
    return {
        "loss": losses / max(1, targets),
        "held_out_items": items,
        "items_left_out_by_the_cap": over,
    }
