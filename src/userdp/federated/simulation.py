"""A whole federation on one machine: by Flower's simulation engine, or one silo after another."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from userdp.data.progress import NoProgress, Progress
from userdp.data.records import Record
from userdp.data.splits import Split
from userdp.data.store import StoreSplit, UserStore
from userdp.data.tokenize import StoreTokenizer
from userdp.errors import FailureError, UseError
from userdp.extras import library
from userdp.federated.claim import FederationClaim, federation_claim
from userdp.federated.data import make_store, spread
from userdp.federated.deployment import APP_FOLDER
from userdp.federated.models import accuracy, build_model, put_weights, weights_of
from userdp.federated.plan import PLAN_FILE, RUN, STORE, FederationPlan, LeafCNN
from userdp.federated.rounds import (
    MODEL_FILE,
    OnRound,
    RoundFacts,
    Weights,
    load_weights,
    read_rounds,
    run_rounds,
    save_weights,
)
from userdp.federated.silo import Silo, silo_folder
from userdp.files import operator_folder, read_json, whole_folder, write_file, write_json
from userdp.gradients import Units
from userdp.interrupts import held
from userdp.plans import Plan
from userdp.training.devices import AUTO, choose_device
from userdp.training.losses import evaluate

SPREAD_FILE = "spread.json"
"""Says that the items of all silos were spread here, by the plan's bound on a subject's silos."""


def make_federation(
    folder: Path,
    plan: FederationPlan,
    records: Sequence[Record],
    *,
    tokenizer: StoreTokenizer,
    seed: int = 0,
    alpha: float | None = None,
) -> None:
    """Write the plan, and a folder for each silo with its store and the plan; or nothing.

    Args:
        folder: is made.
        plan: the federation's.
        records: all silos' together, spread by `userdp.federated.data.places`.
        tokenizer: the one that the plan's model reads.
        seed: of the spread; public.
        alpha: of the spread.

    Raises:
        UseError: the folder exists, or a silo has no subjects.
    """
    if folder.exists():
        raise UseError(
            f"there is something at {folder} already, and a federation is never written over it: "
            "the ledgers of its silos say what their people paid",
            hint="choose another --out",
        )
    parts = spread(records, silos=plan.silos, most=plan.silos_per_subject, seed=seed, alpha=alpha)
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
    folder: Path,
    plan: FederationPlan,
    *,
    on_round: OnRound | None = None,
    device: str = AUTO,
    progress: Progress | None = None,
) -> Weights:
    """The rounds that remain with the silos of a folder, one silo after the other.

    The steps are the same as with Flower. What was stopped goes on after its last round: a silo
    that has released its update of the next one answers with it, and one that was killed in the
    middle of its steps sits that round out.

    Args:
        folder: made by `make_federation`.
        plan: its plan.
        on_round: is called after each round.
        device: see `userdp.training.devices`.
        progress: is told how many rounds are done.

    Raises:
        Interrupted: by Ctrl-C or SIGTERM, when a silo has finished the steps that it had begun.
    """
    model, loss = build_model(plan.model)
    model = model.to(choose_device(device))
    weights, done = weights_of(model), 0
    if (folder / MODEL_FILE).exists():
        weights, done = load_weights(folder / MODEL_FILE)
    shown = progress or NoProgress()
    shown.stage("federate", plan.rounds, unit="round")
    shown.at(done)
    silos = [
        Silo(silo_folder(folder, index), index, model=model, loss=loss)
        for index in range(plan.silos)
    ]

    def ask(number: int, asked: tuple[int, ...], weights: Weights) -> Mapping[int, Weights]:
        updates = {}
        for index in asked:
            signals.check(f"in round {number} of {plan.rounds}, between two silos", resume=True)
            if not silos[index].sits_out(number):
                updates[index] = silos[index].run_round(number, weights)
        return updates

    def after(facts: RoundFacts, weights: Weights) -> None:
        save_weights(folder / MODEL_FILE, weights, rounds=facts.round)
        shown.at(facts.round)
        if on_round is not None:
            on_round(facts, weights)

    with held() as signals:
        try:
            return run_rounds(plan, weights, ask, first=done + 1, on_round=after)
        finally:
            for silo in silos:
                silo.close()


def run_flower(
    folder: Path,
    plan: FederationPlan,
    *,
    cpus: int | None = None,
    round_timeout: float = 3600.0,
    progress: Progress | None = None,
) -> None:
    """All rounds in Flower's simulation engine, with the apps that a deployment runs.

    Args:
        folder: made by `make_federation`.
        plan: its plan.
        cpus: processors for the silos together; all by default.
        round_timeout: seconds to wait for a round.
        progress: is told how many rounds are done.

    Raises:
        UseError: Flower is not installed.
        FailureError: the engine stopped before all rounds were done.
    """
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    simulation = library(
        "flwr.simulation",
        extra="federated",
        what="a simulation",
        otherwise=", or use --runtime in-process",
    )
    from userdp.federated.client import client_app
    from userdp.federated.server import server_app

    shown = progress or NoProgress()
    shown.stage("federate", plan.rounds, unit="round")

    def after(facts: RoundFacts, weights: Weights) -> None:
        shown.at(facts.round)

    logging.getLogger("flwr").setLevel(logging.ERROR)
    simulation.run_simulation(
        server_app=server_app(folder, round_timeout=round_timeout, on_round=after),
        client_app=client_app(folder),
        num_supernodes=plan.silos,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {
                "num_cpus": cpus or os.cpu_count() or 1,
                "logging_level": "ERROR",
                "log_to_driver": False,
                "include_dashboard": False,
            },
        },
    )
    done = read_rounds(folder)
    if not done or done[-1]["round"] != plan.rounds:
        raise FailureError(
            f"Flower's simulation engine stopped after {len(done)} of {plan.rounds} rounds",
            hint="its own log says why; `--runtime in-process` runs the same steps without it",
        )


def claim_of(folder: Path) -> FederationClaim:
    """The claim of the federation in a folder, from the ledgers of its silos that lie there."""
    runs = sorted(path.parent for path in folder.glob(f"silo-*/{RUN}/ledger.jsonl"))
    plan = FederationPlan.load(folder / PLAN_FILE)
    mark, deployed = folder / SPREAD_FILE, (folder / APP_FOLDER).exists()
    here = mark.exists() and read_json(mark, what="a spread").get("plan") == plan.digest
    return federation_claim(plan, runs, spread=here and not deployed)


def measure(folder: Path, plan: FederationPlan, *, device: str = AUTO) -> dict[str, float]:
    """How the federation's model does on all silos' held-out items. Exact, so operator-only.

    Args:
        folder: of the federation.
        plan: its plan.
        device: see `userdp.training.devices`.

    Returns:
        The mean ``loss``; for images the ``accuracy``; ``held_out_items``; and of all items, how
        many the cap leaves out and how many hold a class that the model does not have.
    """
    model, loss = build_model(plan.model)
    model = model.to(choose_device(device))
    put_weights(model, load_weights(folder / MODEL_FILE)[0])
    losses = right = 0.0
    targets = items = unreadable = over = 0
    for index in range(plan.silos):
        store = UserStore.open(silo_folder(folder, index) / STORE)
        if isinstance(plan.local, Plan):
            counts = store.split(Split.TRAIN).counts
            over += int(np.maximum(counts - plan.local.sampling.group_size, 0).sum())
        held = all_units(store.split(Split.HELD_OUT_EXAMPLES))
        if isinstance(plan.model, LeafCNN):
            for units in (held, all_units(store.split(Split.TRAIN))):
                unreadable += int((units.input_ids[:, :1] >= plan.model.classes).sum())
            right += accuracy(model, held) * len(held)
        if len(held):
            evaluation, _ = evaluate(model, store, Split.HELD_OUT_EXAMPLES, loss=loss)
            losses += evaluation["loss"] * evaluation["tokens"]
            targets, items = targets + evaluation["tokens"], items + evaluation["examples"]
    measured = {
        "loss": losses / max(1, targets),
        "held_out_items": items,
        "items_left_out_by_the_cap": over,
        "items_unreadable": unreadable,
    }
    if isinstance(plan.model, LeafCNN):
        measured["accuracy"] = right / max(1, items)
    return measured


def all_units(split: StoreSplit) -> Units:
    """Every item of a split, each a unit. Operator-only."""
    users = np.repeat(np.arange(len(split.counts)), split.counts)
    examples = np.arange(len(users)) - np.repeat(split.counts.cumsum() - split.counts, split.counts)
    rows = split.gather(users, examples)
    return Units.from_flat(rows.tokens, rows.offsets, np.arange(len(users) + 1), rows.targets)
