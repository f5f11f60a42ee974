"""The silo as a Flower ``ClientApp``: it answers with its noisy update, or with a refusal.

Nothing else leaves a silo: no number of items, no loss, no time, no text of an error. A refusal is
one of `REFUSALS`, and depends on the plan, the ledger, the request and how the store was prepared:
what an item holds refuses nothing.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from userdp.errors import UserdpError, kind_of
from userdp.federated.models import shared_model, weights_of
from userdp.federated.rounds import Weights
from userdp.federated.silo import Silo, read_silo, silo_folder

ARRAYS, CONFIG = "arrays", "config"
REFUSALS = ("another federation", "another model", "not in the plan", "failed")

_log = logging.getLogger(__name__)


def client_app(federation: Path | None = None) -> ClientApp:
    """The app of every silo of a federation.

    Args:
        federation: the folder with ``silo-00``, ``silo-01``, … for a simulation. None for a
            deployment: each SuperNode's ``--node-config`` then says ``silo="FOLDER"`` and
            ``index=NUMBER``.
    """
    app = ClientApp()

    @app.query()
    def hello(message: Message, context: Context) -> Message:
        """Which silo this is, of which federation: public constants alone."""
        folder, index = _place(context, federation)
        try:
            plan = read_silo(folder, index)
            model = describe(weights_of(shared_model(plan.model)[0]))
        except Exception as error:  # its words may hold data: neither server nor log gets them
            _log.error("silo %d cannot take part: %s", index, kind_of(error))
            return _refuse(message, "failed", index)
        if message.content[CONFIG]["plan"] != plan.digest:
            return _refuse(message, "another federation", index)
        if message.content[CONFIG]["shapes"] != model:
            return _refuse(message, "another model", index)
        reply = ConfigRecord({"silo": index, "plan": plan.digest})
        return Message(RecordDict({CONFIG: reply}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        """One round: the silo's noisy update."""
        folder, index = _place(context, federation)
        config: Any = message.content[CONFIG]
        arrays: Any = message.content[ARRAYS]
        reason = "failed"
        try:
            plan = read_silo(folder, index)
            if config["plan"] != plan.digest:
                return _refuse(message, "another federation", index)
            model, loss = shared_model(plan.model)
            silo = Silo(folder, index, model=model, loss=loss)
            try:
                number = int(config["round"])
                if not _may_run(silo, number):
                    reason = "not in the plan"
                weights = {name: np.array(arrays[name].numpy()) for name in arrays}
                update = silo.run_round(number, weights)
            finally:
                silo.close()
        except UserdpError as error:
            _log.warning("silo %d refused: %s", index, error.message)
            return _refuse(message, reason, index)
        except Exception as error:  # its words may hold data: neither server nor log gets them
            _log.error("silo %d failed: %s", index, kind_of(error))
            return _refuse(message, "failed", index)
        record = ArrayRecord({name: Array(array) for name, array in update.items()})
        return Message(RecordDict({ARRAYS: record}), reply_to=message)

    return app


def _may_run(silo: Silo, number: int) -> bool:
    return 1 <= number <= silo.plan.rounds and silo.index in silo.plan.schedule(number)


def _place(context: Context, federation: Path | None) -> tuple[Path, int]:
    config = context.node_config
    if federation is not None:
        index = int(config["partition-id"])
        return silo_folder(federation, index), index
    return Path(str(config["silo"])), int(config["index"])


def describe(weights: Weights) -> str:
    """Names and shapes as one line, to tell models apart."""
    return ";".join(f"{name}{list(weights[name].shape)}" for name in sorted(weights))


def _refuse(message: Message, reason: str, index: int) -> Message:
    assert reason in REFUSALS
    return Message(
        RecordDict({CONFIG: ConfigRecord({"refusal": reason, "silo": index})}), reply_to=message
    )
