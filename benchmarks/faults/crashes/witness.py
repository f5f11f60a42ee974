"""Writes down what a process charged, drew and added, as it happens, where no kill can undo it.

The lines are written by single calls of the system to a file outside of the folder that is judged:
what a killed process wrote stays.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from userdp.gradients import noise as noises
from userdp.gradients.noise import NoiseSource
from userdp.ledger import RunLedger
from userdp.sampling.cohort import Sampler


class Witness:
    """Watches the private steps of this process.

    Args:
        trace: the file to append to.
        folder: the folder that is judged; ledgers are named by their place in it.
        is_synced: whether all that was written to a file is on the disk.

    Attributes:
        ledger: of the step that was charged last, by its place.
        step: its number.
    """

    def __init__(self, trace: Path, folder: Path, *, is_synced: Callable[[Path], bool]) -> None:
        self._file = os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._write = os.write
        self._folder, self._is_synced = folder, is_synced
        self._path: Path | None = None
        self._noise: Any = None
        self.ledger, self.step = "", 0

    def tell(self, kind: str, **values: Any) -> None:
        """Append one line."""
        line = {"kind": kind, "ledger": self.ledger, "step": self.step, **values}
        self._write(self._file, json.dumps(line).encode() + b"\n")

    @property
    def stepping(self) -> bool:
        """Whether a step was charged yet.

        Who draws before the first charge is seen by the second step, which comes too early as well.
        """
        return self._path is not None

    def install(self) -> None:
        """Watch from now on."""
        attempt, draw, add = RunLedger.attempt, Sampler.draw, NoiseSource.add_
        draw_on_host = noises.draw_on_host

        def charged(ledger: RunLedger, step: Any) -> int:
            number = attempt(ledger, step)
            self._path, self.step = ledger.path, number
            self.ledger = os.path.relpath(ledger.path, self._folder)
            self.tell("charged")
            return number

        def drawn(sampler: Sampler) -> Any:
            if not self.stepping:
                return draw(sampler)
            state = repr(sampler._generator.bit_generator.state).encode()
            self.tell("drawn", state=hashlib.sha256(state).hexdigest())
            return draw(sampler)

        def added(source: NoiseSource, value: Any, noise_std: float) -> None:
            if not self.stepping:
                add(source, value, noise_std)
                return
            clean = hashlib.sha256()
            for name in sorted(value):
                clean.update(value[name].numpy().tobytes())
            self._noise = hashlib.sha256()
            add(source, value, noise_std)
            self.tell(
                "noise",
                noise=self._noise.hexdigest(),
                sum=clean.hexdigest(),
                lines=0 if self._path is None else charged_in(self._path),
                synced=self._path is not None and self._is_synced(self._path),
            )

        def noised(generator: np.random.Generator, out: Any) -> None:
            draw_on_host(generator, out)
            if self.stepping:
                self._noise.update(out.tobytes())

        RunLedger.attempt = charged
        Sampler.draw = drawn
        NoiseSource.add_ = added
        noises.draw_on_host = noised


def charged_in(ledger: Path) -> int:
    """Attempts that a run's ledger holds; read here, not by the ledger's own code."""
    data = ledger.read_bytes()
    count = 0
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        values = json.loads(line)
        count += 1 if values["kind"] == "attempt" else 0
        count += values["attempts"] if values["kind"] == "lost" else 0
    return count


def read_trace(trace: Path) -> list[dict[str, Any]]:
    """All whole lines, oldest first."""
    if not trace.exists():
        return []
    data = trace.read_bytes()
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]
