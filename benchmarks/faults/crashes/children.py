"""Processes that are forked from this one, which has loaded everything, and are killed for real."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PATIENCE = 300.0
"""Seconds after which a process counts as one that never ends."""
FAULT_OF_PROGRAM = 70
"""The exit status of a process that an error ended which no command answers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a process ended.

    Args:
        status: its exit status; negative for a signal; None where it did not end.
        seconds: on the clock.
    """

    status: int | None
    seconds: float

    @property
    def killed(self) -> bool:
        """Whether a kill ended it, ours or its own."""
        return self.status == -signal.SIGKILL


def warm() -> None:
    """Load what every command needs, so that no child has to.

    Only imports: a process that computes has threads, which a fork would not take along.
    """
    # Before anything is loaded that computes.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import dp_accounting.pld.privacy_loss_distribution  # noqa: F401  (the oracle's bound)
    import pandas  # noqa: F401  (pyarrow loads it when a column is first read)
    import peft  # noqa: F401
    import torch
    import transformers.models.gpt2.modeling_gpt2  # noqa: F401

    import userdp.auditing.audit_run
    import userdp.cli.app
    import userdp.commands.export
    import userdp.commands.members
    import userdp.commands.tune
    import userdp.data.prepare
    import userdp.federated.simulation
    import userdp.plans.planner
    import userdp.training.loop  # noqa: F401

    torch.set_num_threads(1)


def run(
    work: Callable[[], int],
    *,
    log: Path,
    kill_after: float | None = None,
    patience: float = _PATIENCE,
) -> Ended:
    """Do ``work`` in a child, and wait for its end.

    Args:
        work: returns the exit status.
        log: where the child's output goes.
        kill_after: seconds after which the child, and what it started, is killed.
        patience: seconds after which it is given up.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    begin = time.monotonic()
    child = os.fork()
    if child == 0:
        _be(work, log)
    deadline = begin + (patience if kill_after is None else kill_after)
    status: int | None = None
    while status is None:
        found, code = os.waitpid(child, os.WNOHANG)
        if found:
            status = os.waitstatus_to_exitcode(code)
        elif time.monotonic() >= deadline:
            break
        else:
            time.sleep(0.004)
    if status is None:
        for kill in (os.kill, os.killpg):  # it may not lead a group yet
            with suppress(ProcessLookupError):
                kill(child, signal.SIGKILL)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        status = None if kill_after is None else ended
    with suppress(ProcessLookupError):  # what it started goes with it
        os.killpg(child, signal.SIGKILL)
    return Ended(status=status, seconds=time.monotonic() - begin)


def _be(work: Callable[[], int], log: Path) -> None:
    """The child: it never returns."""
    status = FAULT_OF_PROGRAM
    try:
        os.setsid()
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        silent = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((silent, 0), (descriptor, 1), (descriptor, 2)):
            os.dup2(source, target)
        status = work()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(status)
