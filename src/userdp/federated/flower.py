"""A federation on machines of its own, by Flower: the app of each silo, and that of the server.

A silo answers with its noisy update, or says that it failed. Nothing else leaves it: no number of
items, no loss, no time, no text of an error. Whether it fails depends on the plan, the ledger, the
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
from userdp.federated.rounds import Weights, run_rounds
from userdp.federated.silo import Silo, build_model, read_silo, weights_of

APP_FOLDER = "app"
ARRAYS, CONFIG = "arrays", "config"

_log = logging.getLogger(__name__)

client = ClientApp()
"""The app of every silo. Its SuperNode's ``--node-config`` says ``silo="FOLDER" index=NUMBER``."""
server = ServerApp()
"""The app of the server. The run's configuration says its ``folder``, which holds the plan and gets
the weights, and ``round-timeout`` and ``wait-timeout`` in seconds."""


@client.query()
@client.train()
def reply(message: Message, context: Context) -> Message:
    """A silo's answer: its update to a round, and else which silo it is, of which federation.

    Of an error it says only that there was one: words may hold data, and stay in the silo's log.
    """
    asked = cast("Any", message.content)
    folder, index = Path(str(context.node_config["silo"])), int(context.node_config["index"])
    content: dict[str, Any]
    try:
        plan = read_silo(folder, index)
        model, loss = build_model(plan.model)
        if ARRAYS in asked:
            with closing(Silo(folder, index, model, loss)) as silo:
                update = silo.run_round(int(asked[CONFIG]["round"]), _weights(asked[ARRAYS]))
            content = {ARRAYS: _record(update)}
        else:
            public = public_constants(plan, weights_of(model))
            content = {CONFIG: ConfigRecord({"silo": index, **public})}
    except Exception as error:  # of any kind: the server waits for an answer of each silo
        words = error.message if isinstance(error, UserdpError) else kind_of(error)
        _log.warning("silo %d failed: %s", index, words)
        content = {CONFIG: ConfigRecord({"silo": index, "failed": True})}
    return Message(RecordDict(content), reply_to=message)


def _record(weights: Weights) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in weights.items()})


def _weights(arrays: Any) -> Weights:
    return {name: np.array(arrays[name].numpy()) for name in arrays}


def public_constants(plan: FederationPlan, weights: Weights) -> dict[str, str]:
    """The constants that every silo and the server must share: of the plan, and of the model."""
    shapes = ";".join(f"{name}{list(weights[name].shape)}" for name in sorted(weights))
    return {"federation": plan.digest, "model": shapes}


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """Run a federation's rounds over a grid of silos.

    A server that was stopped goes on after its last saved round: silos answer a round that they
    released before with the same update.

    Raises:
        UseError: a silo has another plan or another model, or failed; before the first round.
        FailureError: not all silos came in time.
    """
    config = cast("Any", context.run_config)
    folder = Path(config["folder"])
    plan = FederationPlan.load(folder / PLAN_FILE)
    weights = weights_of(build_model(plan.model)[0])
    members = Members(grid, plan, weights, timeout=float(config["round-timeout"]))
    members.wait_for_all(float(config["wait-timeout"]))
    run_rounds(folder, plan, weights, members.ask)


class Members:
    """The nodes of all silos, which may leave, and come back under another number.

    Args:
        grid: of Flower.
        plan: the federation's.
        weights: of the server's model.
        timeout: seconds to wait for the answers of a round; who is later is left out.
    """

    def __init__(self, grid: Grid, plan: FederationPlan, weights: Weights, timeout: float) -> None:
        self._grid, self._silos, self._timeout = grid, plan.silos, timeout
        self._public = public_constants(plan, weights)
        self._nodes: dict[int, int] = {}

    def wait_for_all(self, timeout: float) -> None:
        """Wait until every silo has said hello, with the right plan and model."""
        end = time.monotonic() + timeout
        while not (strangers := self._greet()) and len(self._nodes) < self._silos:
            if time.monotonic() > end:
                raise FailureError(
                    f"{len(self._nodes)} of {self._silos} silos came within {timeout:g} s",
                    hint="start the missing SuperNodes, or wait longer with wait-timeout",
                )
            time.sleep(0.5)
        if strangers:
            raise UseError(
                f"silos cannot take part: {'; '.join(strangers)}",
                hint="give every silo the folder that was made for it, of this federation",
            )

    def ask(self, number: int, silos: tuple[int, ...], weights: Weights) -> dict[int, Weights]:
        """The updates of a round, without silos that fail or are late."""
        end, silo_of = time.monotonic() + self._timeout, dict[int, int]()
        while not silo_of and time.monotonic() < end:  # a network that is down may come back
            self._greet()
            present = set(self._grid.get_node_ids())
            silo_of = {self._nodes[one]: one for one in silos if self._nodes.get(one) in present}
            time.sleep(0 if silo_of else 0.5)
        content = {ARRAYS: _record(weights), CONFIG: ConfigRecord({"round": number})}
        return {
            silo_of[node]: _weights(answer[ARRAYS])
            for node, answer in self._answers("train", list(silo_of), content, self._timeout)
            if ARRAYS in answer
        }

    def _greet(self) -> list[str]:
        """Ask new nodes which silo they are; in words, who does not belong here and why."""
        strangers = []
        new = sorted(set(self._grid.get_node_ids()) - set(self._nodes.values()))
        hello = {CONFIG: ConfigRecord()}
        for node, answer in self._answers("query", new, hello, min(60.0, self._timeout)):
            told = answer[CONFIG]
            other = [name for name, mine in self._public.items() if told.get(name) != mine]
            if other:
                why = "failed" if "failed" in told else f"another {' and '.join(other)}"
                strangers.append(f"silo {told['silo']}: {why}")
            else:
                self._nodes[int(told["silo"])] = node
        return strangers

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
        for answer in self._grid.send_and_receive(messages, timeout=timeout) if nodes else ():
            if not answer.has_error():
                yield answer.metadata.src_node_id, answer.content


def write_app(folder: Path) -> Path:
    """Write the app of a federation's folder that ``flwr run`` sends to a SuperLink: its folder.

    The app only names `client` and `server` of this module, which every machine has installed.

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
    )
    write_file(app / "pyproject.toml", project.encode())
    return app
