"""Measure a command line in a process of its own, and watch one that runs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """What a process took.

    Args:
        cpu: seconds of processor time, its children's included.
        seconds: by the clock, which on a busy machine says little.
        peak: most memory at once, in MB, of the largest process.
    """

    cpu: float
    seconds: float
    peak: float


def cost_of(*arguments: object) -> Cost:
    """Run ``userdp ARGUMENTS``.

    Raises:
        RuntimeError: it failed; quotes what it printed.
    """
    return cost_of_process([sys.executable, "-m", "userdp", *map(str, arguments)])


def cost_of_process(command: list[str], *, watch: Callable[[int], None] | None = None) -> Cost:
    """Run a command; ``watch`` is called with its process number, twice a second."""
    begin = time.monotonic()
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen(command, stdout=told, stderr=told)
        while True:
            if watch is None:
                _, status, used = os.wait4(process.pid, 0)
                break
            done, status, used = os.wait4(process.pid, os.WNOHANG)
            if done:
                break
            watch(process.pid)
            time.sleep(0.5)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            told.seek(0)
            words = told.read().decode("utf-8", "replace")[-2000:]
            raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}:\n{words}")
    return Cost(
        cpu=round(used.ru_utime + used.ru_stime, 2),
        seconds=round(time.monotonic() - begin, 1),
        peak=round(used.ru_maxrss / 1024),
    )


def cpu_and_memory(pid: int) -> tuple[float, float]:
    """Processor seconds so far, and MB of memory now, of a process that runs."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    resident = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[1])
    return (int(fields[11]) + int(fields[12])) / _TICK, resident * _PAGE / 2**20
