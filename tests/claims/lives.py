"""Lives of small models, told through the command line, and what they cost at least.

The tests beside this file state claims that should hold. Each attack is played through what exists
for a user (commands, files, `make_private`'s loop), and judged by what a user is told: the ε that a
command prints, or that it refuses. ``inf`` stands for both "nothing is claimed" and a refusal.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.plans import uls_plan
from tests.training.toy import CONFIG
from userdp.cli.app import run as userdp
from userdp.core.stages import Progress
from userdp.data.user_store import UserStore
from userdp.plans import Plan
from userdp.training.config import RunOptions
from userdp.training.loop import train

PLAN = uls_plan(cohort_size=10, group_size=2, steps=6, l2_clip_norm=1.0, noise_multiplier=1.0)
"""Six steps of cohorts of 10 of 100 declared users at σ = 1, δ = 1e-5: ε = 2.47."""

SHAPE = ("--set", "learning.layers=1", "--set", "learning.width=16", "--set", "learning.heads=2")
LEARNING = ("--learning-rate", "0.01")
PLAIN = ("--set", "plain.steps=2", "--set", "plain.batch_size=4", "--model", "new")


class Teller:
    """Runs commands in this process and reads what they print."""

    def __call__(self, *arguments: object) -> tuple[int, dict[str, Any]]:
        """The exit status of ``userdp ARGUMENTS --json``, and the object it printed."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            status = userdp([*map(str, arguments), "--json"])
        text = said.getvalue()
        return status, json.loads(text) if text.startswith("{") else {}

    def done(self, *arguments: object) -> dict[str, Any]:
        """The same for an honest command: one that is refused is an error of the set-up."""
        status, values = self(*arguments)
        if status != 0:
            raise RuntimeError(f"an honest command was refused: {arguments}")
        return values

    def epsilon(self, place: Path) -> tuple[float, float]:
        """(ε, δ) that ``account --ledger`` prints; ε is infinite where it refuses."""
        status, values = self("account", "--ledger", place)
        return (float(values["epsilon"]), values["delta"]) if status == 0 else (math.inf, 0.0)

    def of_model(self, run: Path) -> tuple[float, float]:
        """(ε, δ) that is printed for a run's model: the least of all commands that print one."""
        sheet = run.parent / "summary.html"
        status, values = self("report", run, "--summary", sheet, "--overwrite")
        told = values["runs"][0] if status == 0 else {"epsilon": math.inf, "delta": 0.0}
        return min(self.epsilon(run), (float(told["epsilon"]), told["delta"]))


class StopAfter(Progress):
    """Somebody at the keyboard, who stops a run once ``steps`` are done."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def at(self, done: int) -> None:
        """Progress of a run that may be stopped at will."""
        if done >= self._steps:
            raise KeyboardInterrupt


def begin(
    store: UserStore,
    out: Path,
    plan: Plan = PLAN,
    *,
    stop: int | None = None,
    resume: bool = False,
    **config: Any,
) -> Path:
    """A run of ``plan``, to its end or stopped after ``stop`` steps."""
    progress = Progress() if stop is None else StopAfter(stop)
    settings = dataclasses.replace(CONFIG, **config)
    try:
        train(store, plan, settings, out=out, options=RunOptions(resume=resume), progress=progress)
    except KeyboardInterrupt:
        if stop is None:
            raise
    return out


def train_from(
    tell: Teller, store: Path, out: Path, base: Path | str, plan: Plan = PLAN
) -> tuple[int, Path]:
    """``userdp train`` of ``plan`` on top of a model; its exit status, and the run."""
    plan.save(out.with_suffix(".plan.json"))
    options: Sequence[object] = ("--plan", out.with_suffix(".plan.json"), "--model", base)
    status, _ = tell("train", store, "--out", out, *options, *LEARNING)
    return status, out
