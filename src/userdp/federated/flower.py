"""A federation on machines of its own, by Flower: the app of each silo, and that of the server.

A silo answers with its noisy update, or with one of `REFUSALS`. Nothing else leaves it: no number
of items, no loss, no time, no text of an error. A refusal depends on the plan, the ledger, the
request and the preparation of the store, never on the content of an item. The server is trusted
with nothing. All it holds is public: the plan, the weights, who replied.

`userdp.federated.simulation` runs the same silos and rounds on one machine, without Flower.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from contextlib import closing
from importlib import resources
from pathlib import Path
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from userdp import federated
from userdp.core.errors import FailureError, UseError, UserdpError, kind_of
from userdp.core.files import write_file
from userdp.federated.federation_plan import PLAN_FILE, FederationPlan
from userdp.federated.rounds import (
    MODEL_FILE,
    Answers,
    Weights,
    load_weights,
    run_rounds,
)
from userdp.federated.silo import Silo, build_model, put_weights, read_silo, weights_of

APP_FOLDER = "app"
ARRAYS, CONFIG = "arrays", "config"
ROUND_TIMEOUT, WAIT_TIMEOUT = 3600.0, 600.0
"""Seconds, where an app's configuration does not say them."""
REFUSALS = ("another federation", "another model", "failed")

_log = logging.getLogger(__name__)


class _RefusalError(Exception):
    """One of `REFUSALS`, for the server to read."""


def client_app() -> ClientApp:
    """The app of every silo.

    Each SuperNode's ``--node-config`` says ``silo="FOLDER" index=NUMBER``.
    """
    app = ClientApp()
    app.query()(_reply)  # which silo this is, and of which federation: only public constants
    app.train()(_reply)  # one round: the silo's noisy update
    return app


def _reply(message: Message, context: Context) -> Message:
    """The silo's answer, or its refusal: words of an error may hold data, and nobody gets them."""
    asked = cast("Any", message.content)
    folder, index = Path(str(context.node_config["silo"])), int(context.node_config["index"])
    content: dict[str, Any]
    try:
        plan = read_silo(folder, index)
        if asked[CONFIG]["plan"] != plan.digest:
            raise _RefusalError("another federation")
        model, loss = build_model(plan.model)
        if ARRAYS in asked:
            with closing(Silo(folder, index, model=model, loss=loss)) as silo:
                update = silo.run_round(int(asked[CONFIG]["round"]), _weights(asked[ARRAYS]))
            content = {ARRAYS: _record(update)}
        elif asked[CONFIG]["shapes"] != describe(weights_of(model)):
            raise _RefusalError("another model")
        else:
            content = {CONFIG: ConfigRecord({"silo": index, "plan": plan.digest})}
    except Exception as error:
        reason = str(error) if isinstance(error, _RefusalError) else "failed"
        words = error.message if isinstance(error, UserdpError) else kind_of(error)
        _log.warning("silo %d: %s (%s)", index, reason, words)
        content = {CONFIG: ConfigRecord({"refusal": reason, "silo": index})}
    return Message(RecordDict(content), reply_to=message)


def _record(weights: Weights) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in weights.items()})


def _weights(arrays: Any) -> Weights:
    return {name: np.array(arrays[name].numpy()) for name in arrays}


def describe(weights: Weights) -> str:
    """Names and shapes as one line, to tell models apart."""
    return ";".join(f"{name}{list(weights[name].shape)}" for name in sorted(weights))


def server_app() -> ServerApp:
    """The app of a federation's server.

    The run's configuration says its ``folder``, which holds the plan and gets the weights, and
    may set ``round-timeout`` and ``wait-timeout`` in seconds.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = context.run_config
        serve(
            grid,
            Path(str(config["folder"])),
            round_timeout=float(config.get("round-timeout", ROUND_TIMEOUT)),
            wait_timeout=float(config.get("wait-timeout", WAIT_TIMEOUT)),
        )

    return app


def serve(grid: Grid, folder: Path, *, round_timeout: float, wait_timeout: float) -> None:
    """Run a federation's rounds over a grid of silos.

    A server that was stopped goes on after its last saved round: silos answer a round that they
    released before with the same update.

    Args:
        grid: of Flower.
        folder: holds the plan; weights are written there.
        round_timeout: seconds to wait for a round's updates; who is later is left out.
        wait_timeout: seconds to wait for all silos before the first round.

    Raises:
        UseError: a silo has another plan or another model; before the first round.
        FailureError: not all silos came in time.
    """
    plan = FederationPlan.load(folder / PLAN_FILE)
    model, _ = build_model(plan.model)
    if (folder / MODEL_FILE).exists():
        put_weights(model, load_weights(folder / MODEL_FILE)[0])  # refuses another model's
    weights = weights_of(model)
    members = Members(grid, plan, describe(weights), round_timeout)
    members.wait_for_all(wait_timeout)
    run_rounds(folder, plan, weights, members.ask)


class Members:
    """The nodes of all silos, which may leave, and come back under another number.

    Args:
        grid: of Flower.
        plan: the federation's.
        shapes: of the server's model, as `describe` writes them.
        timeout: seconds to wait for the answers of a round.
    """

    def __init__(self, grid: Grid, plan: FederationPlan, shapes: str, timeout: float) -> None:
        self._grid, self._plan, self._timeout = grid, plan, timeout
        self._hello = ConfigRecord({"plan": plan.digest, "shapes": shapes})
        self._nodes: dict[int, int] = {}

    def wait_for_all(self, timeout: float) -> None:
        """Wait until every silo has said hello, with the right plan and model."""
        end, planned = time.monotonic() + timeout, self._plan.silos
        while not (refusals := self._greet()) and len(self._nodes) < planned:
            if time.monotonic() > end:
                raise FailureError(
                    f"{len(self._nodes)} of {planned} silos came within {timeout:g} s",
                    hint="start the missing SuperNodes, or wait longer with wait-timeout",
                )
            time.sleep(0.5)
        if refusals:
            told = ", ".join(f"silo {silo}: {why}" for silo, why in refusals.items())
            raise UseError(
                f"silos refused at the start: {told}",
                hint="give every silo the folder that was made for it, of this federation",
            )

    def ask(self, number: int, silos: tuple[int, ...], weights: Weights) -> Answers:
        """The updates of a round, without silos that fail, refuse or are late; and the refusals."""
        self._greet()
        present = set(self._grid.get_node_ids())
        silo_of = {self._nodes[silo]: silo for silo in silos if self._nodes.get(silo) in present}
        config = ConfigRecord({"round": number, "plan": self._plan.digest})
        content, updates, refusals = {ARRAYS: _record(weights), CONFIG: config}, {}, {}
        for node, answer in self._answers("train", list(silo_of), content, self._timeout):
            if ARRAYS in answer:
                updates[silo_of[node]] = _weights(answer[ARRAYS])
            else:
                refusals[str(silo_of[node])] = str(answer[CONFIG]["refusal"])
        return updates, refusals

    def _greet(self) -> dict[str, str]:
        """Ask new nodes which silo they are; the reasons of those that refuse, by silo."""
        refusals = {}
        new = sorted(set(self._grid.get_node_ids()) - set(self._nodes.values()))
        timeout = min(60.0, self._timeout)
        for node, answer in self._answers("query", new, {CONFIG: self._hello}, timeout):
            told = answer[CONFIG]
            if "refusal" in told:
                refusals[str(told["silo"])] = str(told["refusal"])
            elif 0 <= int(told["silo"]) < self._plan.silos:
                self._nodes[int(told["silo"])] = node
        return refusals

    def _answers(
        self, kind: str, nodes: list[int], content: dict[str, Any], timeout: float
    ) -> Iterator[tuple[int, Any]]:
        """The answers that came in time, each with its node.

        For a node that died Flower answers with an error that does not name the node.
        """
        messages = [
            Message(RecordDict(content), dst_node_id=node, message_type=kind, ttl=timeout)
            for node in nodes
        ]
        for reply in self._grid.send_and_receive(messages, timeout=timeout) if nodes else ():
            if not reply.has_error():
                yield reply.metadata.src_node_id, reply.content


_APPS = b'''"""The two apps; both come from userdp, which every machine has installed."""

from userdp.federated.flower import client_app, server_app

client = client_app()
server = server_app()
'''


def write_app(folder: Path) -> Path:
    """Write the app of a federation's folder that ``flwr run`` sends to a SuperLink: its folder.

    Args:
        folder: made by `userdp.federated.simulation.make_federation`; the server's machine reads
            the plan there and writes the weights there.
    """
    app = folder / APP_FOLDER
    app.mkdir(parents=True, exist_ok=True)
    template = (resources.files(federated) / "app.toml").read_text(encoding="utf-8")
    project = template.format(
        digest=FederationPlan.load(folder / PLAN_FILE).digest[:16],
        folder=json.dumps(str(folder.resolve())),
        round_timeout=ROUND_TIMEOUT,
        wait_timeout=WAIT_TIMEOUT,
    )
    write_file(app / "pyproject.toml", project.encode())
    write_file(app / "federation_app.py", _APPS)
    return app
