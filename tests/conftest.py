"""Busy machines are slow now and then: no test here is about time."""

import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("whenever", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("whenever")

# A shell without job control starts what runs in its background with SIGINT ignored, and userdp
# leaves an ignored signal alone (nohup). Tests of Ctrl-C send one to themselves: they would fail
# there, or wait for ever for a child that does not hear it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    """Tiny models run faster so, and always the same."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _prices_of_its_own():
    """A price that a broken twin computed is none for the next test, nor the other way round."""
    if loaded := sys.modules.get("userdp.accounting.accountants"):
        loaded._epsilon_by.cache_clear()
