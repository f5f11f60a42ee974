"""Busy machines are slow now and then: no test here is about time."""

import atexit
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("whenever", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("whenever")

# A shell without job control starts what runs in its background with SIGINT ignored, and userdp
# leaves an ignored signal alone (nohup). Tests of Ctrl-C send one to themselves: they would fail
# there, or wait for ever for a child that does not hear it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# One cache for the session and all processes that it starts, so that the self-check before a first
# charge (`userdp.training.checks`) is made once for each combination where it is made at all; what
# other libraries keep in a cache stays where it is.
if "USERDP_TESTS_CACHE" not in os.environ:
    known = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    os.environ.setdefault("MPLCONFIGDIR", str(known / "matplotlib"))
    os.environ.setdefault("HF_HOME", str(known / "huggingface"))
    os.environ["USERDP_TESTS_CACHE"] = tempfile.mkdtemp(prefix="userdp-tests-")
    os.environ["XDG_CACHE_HOME"] = os.environ["USERDP_TESTS_CACHE"]
    atexit.register(shutil.rmtree, os.environ["USERDP_TESTS_CACHE"], ignore_errors=True)


@pytest.fixture(autouse=True)
def _checked_elsewhere(request, monkeypatch):
    """`tests.self_check`; a test that itself imports what trains makes the check, and remembers."""
    marked = request.node.get_closest_marker("self_check") is not None
    if not marked and (loaded := sys.modules.get("userdp.training.checks.combination")):
        monkeypatch.setattr(loaded, "passed_earlier", lambda combined: True)


@pytest.fixture(autouse=True)
def _prices_of_its_own():
    """A price that a broken twin computed is none for the next test, nor the other way round."""
    if loaded := sys.modules.get("userdp.accounting.accountants"):
        loaded._epsilon_by.cache_clear()
