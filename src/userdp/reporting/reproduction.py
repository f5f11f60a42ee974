"""The command that runs a plan again, from the public files of a run's folder."""

from __future__ import annotations

import shlex

from userdp.plan.small_delta import DeltaSize, size_of
from userdp.reporting.run_facts import RunFacts


def train_command(run: RunFacts) -> str:
    """``userdp train …`` with the run's plan and the settings that learning depends on.

    It is run in the run's folder, where ``plan.json`` and ``train.toml`` lie. It draws fresh
    cohorts and noise, so that it repeats the distribution of the weights, not the weights. STORE
    is left for the reader to fill in.
    """
    plan = run.plan
    parts = ["userdp", "train", "STORE", "--out", "AGAIN"]
    if plan is not None:
        parts += ["--plan", "plan.json"]
        if size_of(plan.budget.target_delta, plan.population) is DeltaSize.TOO_LARGE:
            parts.append("--allow-large-delta")
    if str(run.train.get("selection", "")).endswith("perplexity"):
        parts += ["--scores", "scores.arrow"]
    return shlex.join([*parts, "--config", "train.toml"])
