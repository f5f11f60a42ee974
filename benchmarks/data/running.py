"""What the parts share: a process of its own, the least time of several, a line on stderr."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any


def child(*arguments: str) -> dict[str, Any]:
    """Run a part of this benchmark in its own process."""
    command = [sys.executable, "-m", "benchmarks.data", *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def least(function: Callable[[], Any], times: int) -> float:
    best = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - began)
    return best


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
