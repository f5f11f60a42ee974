"""Idle threads of OpenMP sleep where the command line computes, unless the user chose otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest

from userdp.core.waiting import PASSIVE_WAITING, warn_of_spinning

_COMMAND = """
import sys
from userdp.cli.app import main
sys.argv = ["userdp", "--version"]
try:
    main()
except SystemExit:
    pass
import torch
torch.ones(100000).sum()
"""
_TORCH_FIRST = "import torch; torch.ones(100000).sum()" + _COMMAND


def turns_before_sleep(code, **chosen):
    """How often a thread of torch's OpenMP spins before it sleeps, as it says itself."""
    names = {*PASSIVE_WAITING, "OMP_DISPLAY_ENV"}
    environment = {k: v for k, v in os.environ.items() if k not in names}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**environment, "OMP_DISPLAY_ENV": "VERBOSE", **chosen},
        capture_output=True,
        text=True,
        check=True,
    )
    lines = [line for line in done.stderr.splitlines() if "GOMP_SPINCOUNT" in line]
    if not lines:
        pytest.skip("this OpenMP, unlike GNU's, does not say how often it spins")
    return int(lines[0].partition("=")[2].strip(" '"))


@pytest.mark.slow
def test_the_command_line_has_idle_threads_sleep_before_torch_loads():
    assert turns_before_sleep(_COMMAND) == 0
    assert turns_before_sleep(_COMMAND, OMP_WAIT_POLICY="ACTIVE") > 10**6, "what the user chose"
    assert turns_before_sleep(_TORCH_FIRST) > 0, "the twin: after torch it would be too late"


def test_a_caller_with_spinning_threads_is_warned_and_nobody_else(monkeypatch):
    for name in PASSIVE_WAITING:
        monkeypatch.delenv(name, raising=False)
    with pytest.warns(UserWarning, match="OMP_WAIT_POLICY=PASSIVE"):
        warn_of_spinning(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_spinning(1)
        monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
        warn_of_spinning(8)
