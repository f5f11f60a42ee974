"""Every command that computes, once on this device and once on the CPU: do they say the same?

A run of a few steps is trained on the device; then each command reads it, by the Python functions
that the command line calls. A command passes if its numbers are the CPU's up to rounding
(`ROUNDING`), or, where it draws what nobody else draws, if it comes to its end and to no fault.
``audit`` trains two reference runs, and ``sweep`` two trials.
``selftest`` is `userdp selftest`: every check of every engine, a verdict for each invariant.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.setting import Result, Setting
from benchmarks.gpu.training import run_plan, write_store
from userdp.auditing.audit_run import Attacks, audit_run
from userdp.data.splits import Split
from userdp.data.user_store import UserStore
from userdp.plans.gradient_norms import Measure
from userdp.sweeping.request import Choice, TuningMode, build_request, grid
from userdp.sweeping.runs import run_sweep
from userdp.training.config import RunOptions, TrainConfig
from userdp.training.evaluation import evaluate_splits
from userdp.training.loop import train
from userdp.training.norm_probe import probe_store
from userdp.training.personalization import LocalTraining, personalize_run
from userdp.training.sampled_texts import GenerateConfig, sampled_texts
from userdp.training.selftest import SelftestConfig, run_selftest
from userdp.training.store_losses import score_store

ROUNDING = 1e-3
"""Relative, of losses and norms: float32 sums in another order, and TF32 is off by default."""

Numbers = dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Place:
    """What the commands read and write.

    Args:
        folder: for what they write.
        store: with people held out.
        run: trained on it.
        config: of that run.
        tiny: do as little as shows that the code runs.
    """

    folder: Path
    store: UserStore
    run: Path
    config: TrainConfig
    tiny: bool


def _evaluate(place: Place, device: str) -> Numbers:
    (found,) = evaluate_splits(place.run, place.store, [Split.HELD_OUT_USERS], device=device)
    return {of: found[of]["loss"] for of in ("model", "base")}


def _personalize(place: Place, device: str) -> Numbers:
    how = LocalTraining(learning_rate=(0.03,), epochs=1)
    most = 2 if place.tiny else 16
    found = personalize_run(place.run, place.store, how, most_users=most, device=device)
    (entry,) = found["model"]
    return {"without": entry["loss_without"], "with": entry["loss_with"]}


def _probe(place: Place, device: str) -> Numbers:
    most = 2 if place.tiny else 4
    who = Measure(users=4 * most, max_group_size=most, seed=1)
    found = probe_store(place.store, place.config, who, device=device)
    return {f"G = {size}": norm for size, norm in found.user_norms.items()}


def _score(place: Place, device: str) -> Numbers:
    # Of a model that has learned from nobody here; a run's own is refused.
    found = score_store(
        place.store,
        "bundled",
        place.folder / f"scores-{device}",
        split=Split.HELD_OUT_USERS,
        device=device,
    )
    quartiles: Numbers = found["quantiles"]
    return quartiles


def _generate(place: Place, device: str) -> Numbers:
    count = 4 if place.tiny else 64
    how = GenerateConfig(max_tokens=4 if place.tiny else 32, prompt=("def", "class A:"))
    texts = list(sampled_texts(place.run, how, count, device=device))
    return {"texts": len(texts)}


def _selftest(place: Place, device: str) -> Numbers:
    sizes: dict[str, Any] = {"units": 2, "group_size": 2} if place.tiny else {}
    model = str(place.run / "model") if place.tiny else "bundled"
    found = run_selftest(SelftestConfig(model=model, device=device, **sizes))
    return {f"invariant {number}": float(held) for number, held in found["invariants"].items()}


def _audit(place: Place, device: str) -> Numbers:
    attacks = Attacks(references=2, repeat=False)
    found = audit_run(place.run, place.store, attacks, device=device)
    return {"AUC": found["inference"]["auc"]}


def _sweep(place: Place, device: str) -> Numbers:
    axes = {"learning_rate": [0.001, 0.01]}
    plan = run_plan(steps=2)
    found = run_sweep(
        place.store,
        place.folder / "sweep",
        build_request(
            place.store,
            grid([plan], place.config, axes=axes),
            Choice(tuning=TuningMode.NON_PRIVATE),
        ),
        device=device,
    )
    return {"trials": len(found.trials)}


@dataclass(frozen=True, kw_only=True)
class Case:
    """One command.

    Args:
        work: runs it on a device.
        beside: whether it is run on the CPU too, and must say the same there.
    """

    work: Callable[[Place, str], Numbers]
    beside: bool = True


CASES = {
    "evaluate": Case(work=_evaluate),
    "personalize": Case(work=_personalize),
    "probe": Case(work=_probe),
    "score": Case(work=_score),
    "generate": Case(work=_generate),
    "selftest": Case(work=_selftest, beside=False),
    "sweep": Case(work=_sweep, beside=False),
    "audit": Case(work=_audit, beside=False),
}


def commands(setting: Setting, deadline: float) -> Result:
    """A row for each command that there is time for."""
    rows: list[Result] = []
    skipped = []
    config = (
        TrainConfig(model="new", layers=1, width=16, heads=2) if setting.tiny else TrainConfig()
    )
    with tempfile.TemporaryDirectory(prefix="userdp-gpu-") as folder:
        write_store(Path(folder) / "store", held_out=True)
        place = Place(
            folder=Path(folder),
            store=UserStore.open(Path(folder) / "store"),
            run=Path(folder) / "run",
            config=config,
            tiny=setting.tiny,
        )
        plan = run_plan(steps=2 if setting.tiny else 10)
        train(place.store, plan, config, out=place.run, options=RunOptions(device=setting.device))
        for name, case in CASES.items():
            if rows and time.monotonic() > deadline:
                skipped.append(name)
            else:
                rows.append(compared(name, case, place, setting))
    return {"rows": rows, "skipped": skipped, "passed": all(row["passed"] for row in rows)}


def compared(name: str, case: Case, place: Place, setting: Setting) -> Result:
    """One command here and on the CPU: seconds, the largest relative difference, the verdict."""
    here, seconds = _timed(case, place, setting.device)
    row: Result = {"command": name, "seconds": seconds, "numbers": here}
    if not case.beside:
        finite = all(math.isfinite(value) for value in here.values())
        return {**row, "passed": finite and _all_held(here)}
    there, on_cpu = _timed(case, place, "cpu")
    row["seconds_cpu"] = on_cpu
    if set(here) != set(there):
        return {**row, "passed": False}
    apart = max(abs(here[key] - value) / max(abs(value), 1e-9) for key, value in there.items())
    return {**row, "difference": apart, "passed": apart < ROUNDING}


def _all_held(numbers: Numbers) -> bool:
    """Whether every invariant that was asked held; true where none was."""
    return all(value == 1.0 for key, value in numbers.items() if key.startswith("invariant "))


def _timed(case: Case, place: Place, device: str) -> tuple[Numbers, float]:
    begin = time.monotonic()
    numbers = case.work(place, device)
    return numbers, round(time.monotonic() - begin, 3)
