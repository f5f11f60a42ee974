"""The server as a Flower ``ServerApp``: finds the silos, checks them once, runs the rounds.

It is trusted with nothing. What it holds is public: the plan, the weights, who replied.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from userdp.errors import FailureError, UseError
from userdp.federated.client import ARRAYS, CONFIG, describe
from userdp.federated.models import build_model, put_weights, weights_of
from userdp.federated.plan import PLAN_FILE, FederationPlan
from userdp.federated.rounds import (
    MODEL_FILE,
    ROUNDS_FILE,
    OnRound,
    RoundFacts,
    Weights,
    load_weights,
    run_rounds,
    save_weights,
)
from userdp.files import append_line


def server_app(
    folder: Path | None = None,
    *,
    round_timeout: float = 3600.0,
    wait_timeout: float = 600.0,
    on_round: OnRound | None = None,
) -> ServerApp:
    """The app of a federation's server.

    A server that was stopped goes on after its last saved round: silos answer a round that they
    released before with the same update.

    Args:
        folder: holds the plan; weights are written there. None: the run's configuration says it
            as ``folder``, and may set ``round-timeout`` and ``wait-timeout`` in seconds.
        round_timeout: how long to wait for a round's updates; who is later is left out.
        wait_timeout: how long to wait for all silos before the first round.
        on_round: is called after each round.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        place = folder if folder is not None else Path(str(config["folder"]))
        serve(
            grid,
            place,
            round_timeout=float(config.get("round-timeout", round_timeout)),
            wait_timeout=float(config.get("wait-timeout", wait_timeout)),
            on_round=on_round,
        )

    return app


def serve(
    grid: Grid,
    folder: Path,
    *,
    round_timeout: float,
    wait_timeout: float,
    on_round: OnRound | None = None,
) -> None:
    """Run a federation's rounds over a grid of silos.

    Raises:
        UseError: a silo has another plan or another model; before the first round.
        FailureError: not all silos came in time.
    """
    plan = FederationPlan.load(folder / PLAN_FILE)
    model, _ = build_model(plan.model)
    weights, done = weights_of(model), 0
    if (folder / MODEL_FILE).exists():
        weights, done = load_weights(folder / MODEL_FILE)
        put_weights(model, weights)  # refuses another model's
    members = Members(grid, plan, describe(weights))
    members.wait_for_all(wait_timeout)

    def ask(number: int, silos: tuple[int, ...], current: Weights) -> Mapping[int, Weights]:
        return members.ask(number, silos, current, timeout=round_timeout)

    def after(facts: RoundFacts, current: Weights) -> None:
        save_weights(folder / MODEL_FILE, current, rounds=facts.round)
        told = {**asdict(facts), "refusals": members.refusals}
        append_line(folder / ROUNDS_FILE, told)
        if on_round is not None:
            on_round(facts, current)

    run_rounds(plan, weights, ask, first=done + 1, on_round=after)


class Members:
    """Which node is which silo; silos may leave, and come back under another number."""

    def __init__(self, grid: Grid, plan: FederationPlan, shapes: str) -> None:
        self._grid, self._plan, self._shapes = grid, plan, shapes
        self._nodes: dict[int, int] = {}
        self._known: set[int] = set()
        self.refusals: dict[str, str] = {}

    def wait_for_all(self, timeout: float) -> None:
        """Wait until every silo has said hello, with the right plan and model."""
        end = time.monotonic() + timeout
        while True:
            self._greet(min(60.0, timeout))
            if self.refusals:
                raise UseError(
                    "silos refused at the start: "
                    + ", ".join(f"silo {silo}: {why}" for silo, why in self.refusals.items()),
                    hint="give every silo the folder that was made for it, of this federation",
                )
            if len(self._nodes) == self._plan.silos:
                return
            if time.monotonic() > end:
                raise FailureError(
                    f"{len(self._nodes)} of {self._plan.silos} silos came within {timeout:g} s",
                    hint="start the missing SuperNodes, or wait longer with wait-timeout",
                )
            time.sleep(0.5)

    def ask(
        self, number: int, silos: tuple[int, ...], weights: Weights, *, timeout: float
    ) -> dict[int, Weights]:
        """The updates of a round; who fails, refuses or is late is not among them."""
        self._greet(min(60.0, timeout))
        self.refusals = {}
        present = set(self._grid.get_node_ids())
        silo_of = {self._nodes[silo]: silo for silo in silos if self._nodes.get(silo) in present}
        record = ArrayRecord({name: Array(array) for name, array in weights.items()})
        config = ConfigRecord({"round": number, "plan": self._plan.digest})
        messages = [
            Message(
                RecordDict({ARRAYS: record, CONFIG: config}),
                dst_node_id=node,
                message_type="train",
                group_id=str(number),
                ttl=timeout,
            )
            for node in silo_of
        ]
        updates: dict[int, Weights] = {}
        for reply in self._grid.send_and_receive(messages, timeout=timeout):
            silo = silo_of.get(reply.metadata.src_node_id)
            if silo is None:
                continue
            if reply.has_error():
                self.refusals[str(silo)] = "failed"
            elif ARRAYS in reply.content:
                arrays: Any = reply.content[ARRAYS]
                updates[silo] = {name: np.array(arrays[name].numpy()) for name in arrays}
            else:
                self.refusals[str(silo)] = str(reply.content[CONFIG]["refusal"])
        return updates

    def _greet(self, timeout: float) -> None:
        """Ask new nodes which silo they are."""
        present = set(self._grid.get_node_ids())
        self._known &= present
        new = sorted(present - self._known)
        if not new:
            return
        config = ConfigRecord({"plan": self._plan.digest, "shapes": self._shapes})
        messages = [
            Message(
                RecordDict({CONFIG: config}), dst_node_id=node, message_type="query", ttl=timeout
            )
            for node in new
        ]
        for reply in self._grid.send_and_receive(messages, timeout=timeout):
            if reply.has_error():
                continue
            node = reply.metadata.src_node_id
            answer: Any = reply.content[CONFIG]
            self._known.add(node)
            silo = int(answer["silo"])
            if "refusal" in answer:
                self.refusals[str(silo)] = str(answer["refusal"])
            elif 0 <= silo < self._plan.silos:
                self._nodes[silo] = node
