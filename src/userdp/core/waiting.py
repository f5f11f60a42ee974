"""How idle threads of OpenMP wait: asleep, which leaves a busy machine its cores."""

from __future__ import annotations

import os
from typing import Final

from userdp.core.errors import warn

PASSIVE_WAITING: Final = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
"""The environment under which they sleep: the standard's word, GNU's, and LLVM's and Intel's."""


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
