"""The surroundings of a process: libraries that only some uses need, and how idle threads wait."""

from __future__ import annotations

import importlib
import os
from typing import Any, Final

from userdp.core.errors import UseError, warn

PASSIVE_WAITING: Final = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
"""Variables under which idle threads of OpenMP sleep: the standard's, GNU's, and LLVM's.

A sleeping thread leaves a busy machine its cores.
"""


def warn_of_spinning(threads: int) -> None:
    """Warn a caller whose ``threads`` threads of OpenMP spin while they wait; once a process.

    The variables are read when torch is loaded, so that a library cannot set them any more.
    """
    if threads > 1 and not PASSIVE_WAITING.keys() & os.environ.keys():
        warn(
            "idle OpenMP threads spin, which slows every step several-fold where other processes "
            "want the cores: set OMP_WAIT_POLICY=PASSIVE (or ACTIVE, to keep it so) before Python "
            "starts",
            stacklevel=3,
        )


def library(module: str, *, extra: str, what: str, otherwise: str = "") -> Any:
    """The module of a library that only some uses need, imported.

    Args:
        module: its name in Python.
        extra: the extra of pyproject.toml that installs it.
        what: the use that needs it, for the message.
        otherwise: another way out, after the installation.

    Raises:
        UseError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UseError(
            f"{what} needs the library {module.split('.')[0]}, which is not installed",
            hint=f"pip install 'userdp[{extra}]'{otherwise}",
        ) from error
