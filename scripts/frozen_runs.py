"""Seven seeded tiny runs whose weights and ε must not change while the code is rearranged.

Usage: python scripts/frozen_runs.py

Prints, for each run, the SHA-256 of its released weights and the ε of its ledger. The runs cover
the two samplings, Group Privacy, fixed-graph adjacency, adaptive clipping, adapters and a run that
was interrupted and resumed. Both seeds are unsafe on purpose, so that the figures repeat; no such
run may claim anything, so ε is that of the ledger's plan. Weights depend on the processor's
arithmetic: compare two commits on one machine.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import struct
import tempfile
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from userdp.accounting import Accountant
from userdp.cli.app import run as userdp
from userdp.data.user_store import UserStore
from userdp.ledger import RunRecord
from userdp.noise import Gaussian
from userdp.noise.clip_forms import AdaptiveClipping, Clip
from userdp.plans import Budget, Plan
from userdp.sampling import FixedGraph, PoissonExamples, PoissonUsers
from userdp.training.config import TrainConfig
from userdp.training.loop import train

_CONFIG = TrainConfig(
    model="new", layers=1, width=16, heads=2, learning_rate=0.01, checkpoint_every=2
)
_STEPS = 6


class _Stop(Exception):
    """Ends a run in its middle, as a killed process would."""


class _StopAt:
    """Progress that interrupts the run after a step."""

    def __init__(self, step: int) -> None:
        self._step = step

    def stage(self, name: str, total: int | None = None) -> None:
        """Not shown."""

    def at(self, done: int) -> None:
        if done == self._step:
            raise _Stop


def _records(path: Path, *, owners: bool) -> Path:
    draw = random.Random(7)
    words = [f"word{number}" for number in range(40)]
    with path.open("w", encoding="utf-8") as file:
        for number in range(240):
            first = f"user{draw.randrange(40):02d}"
            second = f"user{draw.randrange(40):02d}"
            user = sorted({first, second}) if owners else first
            text = " ".join(draw.choices(words, k=draw.randint(3, 12)))
            file.write(json.dumps({"user": user, "text": text, "n": number}) + "\n")
    return path


def _store(folder: Path, name: str, *options: str) -> UserStore:
    records = _records(folder / f"{name}.jsonl", owners=bool(options))
    out = folder / name
    with redirect_stdout(io.StringIO()):  # what is printed here are the figures of the runs alone
        code = userdp(["prepare", str(records), "--out", str(out), "--seq-len", "16", *options])
    assert code == 0, code
    return UserStore.open(out, fixed_graph=True)


def _uls() -> Plan:
    return Plan(
        sampling=PoissonUsers(sampling_probability=200 / 1000, group_size=3),
        clip=Clip(l2_norm=0.5),
        noise=Gaussian(multiplier=0.8),
        steps=_STEPS,
        population=1000,
        budget=Budget(target_delta=1e-5),
    )


def _els(sampling: type[PoissonExamples] = PoissonExamples) -> Plan:
    return Plan(
        sampling=sampling(sampling_probability=100 / 1000, group_size=3),
        clip=Clip(l2_norm=0.5),
        noise=Gaussian(multiplier=1.1),
        steps=_STEPS,
        population=1000,
        budget=Budget(target_delta=1e-5),
    )


def _as_trained(path: Path) -> bytes:
    """A file of weights without what is noted of their lineage, in which every run's id differs."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"].pop("userdp")
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    return struct.pack("<Q", len(encoded)) + encoded + data[8 + size :]


def _show(name: str, run: Path) -> None:
    weights = hashlib.sha256(_as_trained(run / "model" / "model.safetensors")).hexdigest()
    plan = RunRecord.read(run).plan
    assert plan is not None
    print(f"{name:14} {weights}  epsilon {plan.guarantee().epsilon!r}", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        plain = _store(folder, "plain")
        graph = _store(
            folder,
            "graph",
            "--records-per-user",
            "3",
            "--held-out-examples",
            "0",
        )
        lora = replace(_CONFIG, lora_rank=4)
        runs = {
            "uls": (plain, _uls(), _CONFIG),
            "els": (plain, _els(), _CONFIG),
            "group-privacy": (plain, replace(_els(), accountant=Accountant.GROUP_PRIVACY), _CONFIG),
            "fixed-graph": (graph, _els(FixedGraph), _CONFIG),
            "adaptive": (
                plain,
                replace(_uls(), clip=Clip(l2_norm=0.5, adaptation=AdaptiveClipping(quantile=0.5))),
                _CONFIG,
            ),
            "lora": (plain, _uls(), lora),
            "resumed": (plain, _uls(), _CONFIG),
        }
        for number, (name, (store, plan, config)) in enumerate(runs.items()):
            out = folder / name
            seeds = {"unsafe_seed": 10 + number, "unsafe_noise_seed": 100 + number}
            if name == "resumed":
                try:
                    train(
                        store,
                        plan,
                        config,
                        out=out,
                        progress=_StopAt(3),
                        **seeds,
                    )
                except _Stop:
                    seeds = {"unsafe_seed": 50, "unsafe_noise_seed": 51}
                train(store, plan, config, out=out, resume=True, **seeds)
            else:
                train(store, plan, config, out=out, **seeds)
            _show(name, out)


if __name__ == "__main__":
    main()
