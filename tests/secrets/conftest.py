"""A store of planted people, and a run over it, made once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from tests.plans import uls_plan
from tests.secrets.planted import Secrets, measured_in, secrets_of, write_jsonl
from userdp.commands.prepare import prepare
from userdp.data.user_store import UserStore
from userdp.training.causal_models import new_model
from userdp.training.config import TrainConfig
from userdp.training.loop import train
from userdp.training.private_run import make_private

PLAN = uls_plan(population=20000, cohort_size=400, group_size=2, steps=3, l2_clip_norm=1.0)
CONFIG = TrainConfig(model="new", layers=1, width=16, heads=2, learning_rate=0.01)


@dataclass(frozen=True)
class Planted:
    """What the tests begin with.

    Args:
        folder: holds ``people.jsonl``, ``store``, ``plan.json``, ``run``.
        secrets: of the store, and of the run's operator.
    """

    folder: Path
    secrets: Secrets

    @property
    def store(self) -> UserStore:
        """The store, opened."""
        return UserStore.open(self.folder / "store")


def plant(folder: Path, *, trained: bool = True, finished: bool = True) -> Planted:
    """A store of the planted people in ``folder``, and a run over it.

    Args:
        folder: where; made here.
        trained: begin a run.
        finished: take all of its steps.
    """
    store = prepare(
        str(write_jsonl(folder / "input")),
        out=folder / "store",
        user="author",
        text="message",
        seq_len=16,
        held_out_users=0.2,
    )
    secrets = secrets_of(store)
    if trained and finished:
        train(store, PLAN, CONFIG, out=folder / "run")
        secrets = replace(secrets, measured=measured_in(folder / "run" / "operator.jsonl"))
    elif trained:
        model = new_model(CONFIG, vocab_size=store.meta.vocab_size, seq_len=store.meta.seq_len)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with make_private(model, optimizer, store, PLAN, out=folder / "run") as private:
            next(iter(private))
            optimizer.step()
    return Planted(folder, secrets)


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    return plant(tmp_path_factory.mktemp("planted"))
