"""One toy store per session, copied for each test: runs write to a store's ledger."""

import shutil
from pathlib import Path

import pytest

from tests.plans import uls_plan
from tests.training.toy import private_run, sgd, toy_model, toy_store
from userdp.claims.lineage import Lineage
from userdp.data.user_store import UserStore
from userdp.training.loop import OperatorLog, train
from userdp.training.released_model import save_model


@pytest.fixture(scope="session")
def prepared(tmp_path_factory) -> Path:
    return toy_store(tmp_path_factory.mktemp("prepared")).path


@pytest.fixture
def store(prepared, tmp_path) -> UserStore:
    shutil.copytree(prepared, tmp_path / "store")
    return UserStore.open(tmp_path / "store")


@pytest.fixture
def base(store, tmp_path) -> Path:
    """A folder with a model that learned from nobody, as somebody else released it."""
    folder = tmp_path / "base"
    save_model(toy_model(store), folder, tokenizer=store.tokenizer_path, lineage=Lineage())
    return folder


@pytest.fixture
def begin(store, tmp_path):
    """Opens the run of a loop of one's own, in ``tmp_path / name``; by default of a new model."""

    def begin(plan=None, *, model=None, optimizer=None, name="run", **options):
        model = toy_model(store) if model is None else model
        optimizer, plan = optimizer or sgd(model), plan or uls_plan()
        return private_run(model, optimizer, store, plan, out=tmp_path / name, **options)

    return begin


@pytest.fixture
def stopped(store, tmp_path, monkeypatch):
    """The folder of a run of ``userdp train`` that ended in step ``at``, behind its charge."""

    def stopped(plan, config, at, name="run"):
        honest = OperatorLog.step

        def ends(self, step, *, rate):
            if step.number == at:
                raise KeyboardInterrupt
            honest(self, step, rate=rate)

        with monkeypatch.context() as patch:
            patch.setattr(OperatorLog, "step", ends)
            with pytest.raises(KeyboardInterrupt):
                train(store, plan, config, out=tmp_path / name)
        return tmp_path / name

    return stopped
