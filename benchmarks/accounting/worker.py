"""Each library in a process of its own, which reads a request and writes a reply, a line each."""

from __future__ import annotations

import json
import os
import resource
import selectors
import subprocess
import sys
import time
from dataclasses import asdict

from benchmarks.accounting.libraries import Row, ask_dp_accounting, ask_ours, peak_mb
from benchmarks.accounting.settings import Setting

MEMORY_BYTES = 8 << 30


def children_cpu() -> float:
    """Processor seconds of all workers that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def serve(library: str) -> None:
    """Read requests from stdin and answer each, until stdin closes."""
    answer = ask_ours if library == "ours" else ask_dp_accounting
    if library == "ours":
        ask_ours({"task": "epsilon", "setting": asdict(Setting(50, 0.1, 3.0, 2, 1e-5))})  # warm up
    else:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        import dp_accounting  # noqa: F401
    print(json.dumps({"ready": peak_mb(), "cpu": time.process_time()}), flush=True)
    for line in sys.stdin:
        try:
            reply = answer(json.loads(line))
        except Exception as error:  # of any library: a row by its name, and the next setting
            reply = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(reply), flush=True)


class Worker:
    """A process that answers requests; a new one is started after a cap or a crash."""

    def __init__(self, library: str) -> None:
        self.asked = library
        self.process: subprocess.Popen[str] | None = None
        self.ready_mb = self.ready_cpu = 0.0

    def ask(self, request: Row, cap: float) -> Row:
        """The reply, or {"capped": True, "seconds": cap}, or {"error": ...}."""
        if self.process is None:
            environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
            self.process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.accounting", "--worker", self.asked],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment,
            )
            ready = self._read(120)
            if ready is None or "ready" not in ready:
                self.close()
                return {"error": "the worker did not start"}
            self.ready_mb, self.ready_cpu = ready["ready"], ready["cpu"]
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        start = time.perf_counter()
        reply = self._read(cap + 5)
        if reply is None:
            waited, before = time.perf_counter() - start, children_cpu()
            self.close()
            used = max(children_cpu() - before - self.ready_cpu, 0.0)
            if waited >= cap - 1:
                return {"capped": True, "seconds": cap, "cpu_seconds": used}
            return {"error": f"the process died after {waited:.1f} s"}
        if reply.get("seconds", 0) > cap:
            return {"capped": True, "seconds": cap, "cpu_seconds": reply["cpu_seconds"]}
        return reply

    def _read(self, timeout: float) -> Row | None:
        assert self.process is not None
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(timeout):
                return None
        line = self.process.stdout.readline()
        return json.loads(line) if line else None

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
