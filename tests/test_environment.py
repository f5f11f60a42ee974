"""Idle threads of OpenMP sleep where the command line computes, unless the user chose otherwise.

And a locale without ε stops no answer.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import pytest

from userdp.core.environment import PASSIVE_WAITING, warn_of_spinning

LOADING_TORCH = """
import os, sys
sys.modules["torch"] = None  # whoever imports it now fails
from userdp.cli.app import main
sys.argv = ["userdp", "--version"]
try:
    main()
finally:
    print(os.environ["OMP_WAIT_POLICY"], os.environ.get("GOMP_SPINCOUNT"), chr(0x3b5))
"""
"""OpenMP reads its variables once, when torch is loaded."""


@pytest.mark.parametrize(
    ("chosen", "said"), [({}, "PASSIVE 0"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE None")]
)
def test_the_command_line_has_idle_threads_sleep_before_torch_loads(chosen, said):
    kept = {k: v for k, v in os.environ.items() if k not in PASSIVE_WAITING} | chosen
    done = subprocess.run(
        [sys.executable, "-c", LOADING_TORCH],
        env={**kept, "PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == rf"{said} \u03b5"


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
