"""Busy machines are slow now and then: no test here is about time."""

import sys

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("whenever", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("whenever")


@pytest.fixture(autouse=True)
def _prices_of_its_own():
    """A price that a broken twin computed is none for the next test, nor the other way round."""
    if loaded := sys.modules.get("userdp.accounting.accountants"):
        loaded._epsilon_by.cache_clear()
