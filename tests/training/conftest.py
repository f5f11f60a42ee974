"""One toy store per session, copied for each test: runs write to a store's ledger."""

import shutil
from pathlib import Path

import pytest
import torch

from tests.training.toy import toy_store
from userdp.data.store import UserStore


@pytest.fixture(scope="session")
def prepared(tmp_path_factory) -> Path:
    return toy_store(tmp_path_factory.mktemp("prepared")).path


@pytest.fixture
def store(prepared, tmp_path) -> UserStore:
    shutil.copytree(prepared, tmp_path / "store")
    return UserStore.open(tmp_path / "store")


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Tiny models run faster so, and always the same."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
