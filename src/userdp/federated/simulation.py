"""A whole federation on one machine: by Flower's simulation engine, or one silo after another."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from userdp.errors import FailureError, UseError
from userdp.federated.data import DATA_FILE, SubjectItems
from userdp.federated.ledger import LEDGER_FILE, FederationClaim, federation_claim
from userdp.federated.models import build_model, weights_of
from userdp.federated.plan import FederationPlan
from userdp.federated.rounds import (
    MODEL_FILE,
    OnRound,
    RoundFacts,
    Weights,
    read_rounds,
    run_rounds,
    save_weights,
)
from userdp.federated.silo import PLAN_FILE, Silo, silo_folder
from userdp.files import OPERATOR_FOLDER, write_json


def make_federation(folder: Path, plan: FederationPlan, silos: Sequence[SubjectItems]) -> None:
    """Write the plan, and a folder for each silo with its items and the plan.

    Raises:
        UseError: the folder exists, the number of silos is not the plan's, a silo has no subjects,
            or a subject is over the cap. Nothing is written then.
    """
    if folder.exists():
        raise UseError(f"{folder} exists already", hint="choose another folder with --out")
    if len(silos) != plan.silos:
        raise UseError(f"the plan is for {plan.silos} silos, and there are {len(silos)}")
    for index, data in enumerate(silos):
        if not data.items:
            raise UseError(
                f"silo {index} has no subjects: it could only add noise",
                hint="spread the data over fewer silos",
            )
        if not plan.paper and int(data.counts.max()) > plan.group_size:
            raise UseError(
                f"a subject of silo {index} has more than {plan.group_size} items",
                hint="cap the items first",
            )
    folder.mkdir(parents=True)
    write_json(folder / PLAN_FILE, plan.to_dict())
    for index, data in enumerate(silos):
        place = silo_folder(folder, index)
        place.mkdir(mode=OPERATOR_FOLDER)
        write_json(place / PLAN_FILE, plan.to_dict())
        data.save(place / DATA_FILE)


def run_in_process(
    folder: Path, plan: FederationPlan, *, on_round: OnRound | None = None
) -> Weights:
    """All rounds with the silos of a folder, one after the other; the same steps as with Flower."""
    silos = {i: Silo.open(silo_folder(folder, i), i) for i in range(plan.silos)}

    def ask(number: int, asked: tuple[int, ...], weights: Weights) -> Mapping[int, Weights]:
        return {index: silos[index].run_round(number, weights) for index in asked}

    def after(facts: RoundFacts, weights: Weights) -> None:
        save_weights(folder / MODEL_FILE, weights, rounds=facts.round)
        if on_round is not None:
            on_round(facts, weights)

    model, _ = build_model(plan.model)
    try:
        return run_rounds(plan, weights_of(model), ask, on_round=after)
    finally:
        for silo in silos.values():
            silo.close()


def run_flower(
    folder: Path,
    plan: FederationPlan,
    *,
    on_round: OnRound | None = None,
    cpus: int | None = None,
    round_timeout: float = 3600.0,
) -> None:
    """All rounds in Flower's simulation engine, with the apps that a deployment runs.

    Args:
        folder: made by `make_federation`.
        plan: its plan.
        on_round: called after every round.
        cpus: processors for the silos together; all by default.
        round_timeout: seconds to wait for a round.

    Raises:
        UseError: Flower is not installed.
        FailureError: the engine stopped before all rounds were done.
    """
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        from flwr.simulation import run_simulation
    except ImportError as error:
        raise UseError(
            "the simulation engine is Flower's, which is not installed",
            hint="pip install 'userdp[federated]', or use --runtime in-process",
        ) from error
    from userdp.federated.client import client_app
    from userdp.federated.server import server_app

    logging.getLogger("flwr").setLevel(logging.ERROR)
    run_simulation(
        server_app=server_app(folder, on_round=on_round, round_timeout=round_timeout),
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


def claim_of(folder: Path, plan: FederationPlan) -> FederationClaim:
    """The claim of the silos' ledgers in a folder."""
    paths = [silo_folder(folder, index) / LEDGER_FILE for index in range(plan.silos)]
    return federation_claim([path for path in paths if path.exists()])
