"""The toy store of the tests of training; and private selections that draw two trials."""

import pytest

from tests.training.conftest import prepared, store
from userdp.accounting.private_selection import TruncatedNegativeBinomial

__all__ = ["prepared", "store"]


@pytest.fixture
def two_trials(monkeypatch):
    monkeypatch.setattr(TruncatedNegativeBinomial, "draw", lambda self: 2)
