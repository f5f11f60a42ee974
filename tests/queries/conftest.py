"""A store whose ledger each test begins anew."""

from __future__ import annotations

import pytest

from tests.data.corpora import corpus, prepared
from tests.ledgers import forget, unwritten
from userdp.ledger import permitted_lines
from userdp.ledger.lines import Answer, Charge

pytest.importorskip("opendp", reason="the extra queries is not installed")


@pytest.fixture(scope="session")
def counted(tmp_path_factory):
    return prepared(corpus(8), tmp_path_factory.mktemp("asked") / "store", held_out_users=0)


@pytest.fixture
def store(counted):
    forget(counted.path)
    return counted


@pytest.fixture
def free(store, monkeypatch):
    """The same store without a line in its ledger for each answer: for many answers."""
    monkeypatch.setattr(permitted_lines, "is_new", unwritten(Charge, Answer))
    return store
