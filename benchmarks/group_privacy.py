"""Group Privacy beside ELS and ULS at the same user-level ε: σ and held-out loss.

    python -m benchmarks.surface prepare --data commits.jsonl.gz   # stores, base model
    python -m benchmarks.surface plan                              # norms, for the clip norms
    python -m benchmarks.group_privacy run                         # goes on where it stopped
    python -m benchmarks.group_privacy report [--json]

The setting of Chua et al. 2024 in small: at most k = 10 examples of a user, ε of 0.5, 1, 3 and 8.
Group Privacy (their Algorithm 1) by Vadhan's lemma and by the best one that knows a single (ε, δ),
ELS by the mixture of Gaussians (Charles et al. 2024, Theorem 1), which runs the very same steps
with less noise, and ULS (their Algorithm 2) at the same expected number of gradients.

All four start from the small base model of `benchmarks.surface`. The learning rate is tuned with
one run each; the three measured runs are fresh ones with the best of them. Users with fewer than k
examples keep what they have; Algorithm 1 would draw some of theirs twice.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.surface import DELTA, FINE, POPULATION, RESULTS, STEPS, interval
from papers.sized import plan_of_size
from papers.studies.runs import Job, Row, held_out_loss, read_rows, run_all
from userdp.accounting import Accountant
from userdp.clip import ClipForm
from userdp.plans import Plan
from userdp.sampling import PoissonExamples, PoissonUsers

K = 10
EPSILONS = (0.5, 1.0, 3.0, 8.0)
EXAMPLES_PER_USER = 6  # declared: 9,000 examples after the cap
BATCH_SIZE = 64
RATES = (1.5e-3, 3e-3)
REPETITIONS = 3
METHODS: dict[str, Accountant | None] = {
    "GP (Vadhan)": Accountant.GROUP_PRIVACY_VADHAN,
    "GP (best)": Accountant.GROUP_PRIVACY,
    "ELS": Accountant.CONTOUR,
    "ULS": None,
}


def plan_of(method: str, epsilon: float, norms: dict[str, float], example_norm: float) -> Plan:
    """The private plan of a method; all spend BATCH_SIZE gradients a step in expectation."""
    accountant = METHODS[method]
    if accountant is None:
        low, high = norms["8"], norms["16"]
        plan = plan_of_size(
            PoissonUsers,
            population=POPULATION,
            size=BATCH_SIZE / EXAMPLES_PER_USER,
            group_size=K,
            steps=STEPS,
            l2_clip_norm=low + (high - low) * (K - 8) / 8,
            target_delta=DELTA,
            target_epsilon=epsilon,
        )
    else:
        plan = plan_of_size(
            PoissonExamples,
            population=POPULATION * EXAMPLES_PER_USER,
            size=BATCH_SIZE,
            group_size=K,
            steps=STEPS,
            l2_clip_norm=example_norm,
            target_delta=DELTA,
            target_epsilon=epsilon,
            accountant=accountant,
        )
    return replace(plan, clip=replace(plan.clip, form=ClipForm.NORMALIZED))


def run(work: Path, surface_plan: dict[str, Any], results: Path) -> None:
    """Tune every method at every ε, then measure."""
    config = replace(FINE, model=str(work / "base" / "model"))
    plans = {
        (method, epsilon): plan_of(
            method, epsilon, surface_plan["norms"], surface_plan["example_norm"]
        )
        for epsilon in EPSILONS
        for method in METHODS
    }

    def job(method: str, epsilon: float, rate: float, name: str) -> Job:
        return Job(
            key={"method": method, "epsilon": epsilon, "rate": rate, "run": name},
            plan=plans[method, epsilon],
            config=replace(config, learning_rate=rate),
        )

    shared: dict[str, Any] = {"store": work / "store", "work": work / "gp", "results": results}
    shared["most_examples"] = surface_plan["evaluated_examples_per_user"]
    shared["work"].mkdir(exist_ok=True)
    run_all([job(m, e, rate, "tune") for m, e in plans for rate in RATES], **shared)
    rows = read_rows(results)
    best = {cell: _best_rate(rows, *cell) for cell in plans}
    run_all(
        [job(m, e, best[m, e], f"measure-{n}") for n in range(REPETITIONS) for m, e in plans],
        **shared,
    )


def _best_rate(rows: list[Row], method: str, epsilon: float) -> float:
    tuned = [row for row in _rows_of(rows, method, epsilon) if row["key"]["run"] == "tune"]
    return float(min(tuned, key=lambda row: float(row["loss"]))["key"]["rate"])


def _rows_of(rows: list[Row], method: str, epsilon: float) -> list[Row]:
    return [
        row for row in rows if row["key"]["method"] == method and row["key"]["epsilon"] == epsilon
    ]


def summary(rows: list[Row]) -> list[Row]:
    """A line for each ε and method that was measured."""
    lines = []
    for epsilon in EPSILONS:
        for method in METHODS:
            part = _rows_of(rows, method, epsilon)
            losses = [row["loss"] for row in part if row["key"]["run"].startswith("measure")]
            if not losses:
                continue
            low, high = interval(losses)
            lines.append(
                {
                    "target_epsilon": epsilon,
                    "method": method,
                    "epsilon": max(row["epsilon"] for row in part),
                    "noise_multiplier": part[0]["noise_multiplier"],
                    "loss": statistics.fmean(losses),
                    "interval": [low, high],
                    "runs": len(losses),
                }
            )
    return lines


def table(lines: list[Row]) -> str:
    """σ and loss of the four methods side by side, a row for each ε."""
    out = ["| ε | " + " | ".join(f"{m}: σ | loss" for m in METHODS) + " |"]
    out.append("|" + "---|" * (1 + 2 * len(METHODS)))
    for epsilon in EPSILONS:
        found = {line["method"]: line for line in lines if line["target_epsilon"] == epsilon}
        parts = [f"{epsilon:g}"]
        for method in METHODS:
            line = found.get(method)
            if line is None:
                parts += ["–", "–"]
                continue
            low, high = line["interval"]
            parts.append(f"{line['noise_multiplier']:.3f}")
            parts.append(f"{line['loss']:.4f} [{low:.4f}, {high:.4f}]")
        out.append("| " + " | ".join(parts) + " |")
    return "\n".join(out)


def base_loss(work: Path, most_examples: int) -> float:
    """The loss before any training."""
    from userdp.data.splits import Split
    from userdp.data.store import UserStore
    from userdp.training.models import read_model

    split = UserStore.open(work / "store").split(Split.HELD_OUT_USERS)
    return held_out_loss(read_model(str(work / "base" / "model")), split, most_examples)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("stage", choices=("run", "noise", "base", "report"))
    parser.add_argument("--work", type=Path, default=Path("runs/surface"))
    parser.add_argument("--surface-plan", type=Path, default=RESULTS / "surface-plan.json")
    parser.add_argument("--results", type=Path, default=RESULTS / "group-privacy.jsonl")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.stage == "report":
        lines = summary(read_rows(options.results))
        print(json.dumps({"summary": lines}) if options.json else table(lines))
        return
    surface_plan = json.loads(options.surface_plan.read_text(encoding="utf-8"))
    if options.stage == "run":
        run(options.work, surface_plan, options.results)
    elif options.stage == "base":
        print(base_loss(options.work, surface_plan["evaluated_examples_per_user"]))
    else:
        for epsilon in EPSILONS:
            norms, example = surface_plan["norms"], surface_plan["example_norm"]
            plans = {m: plan_of(m, epsilon, norms, example) for m in METHODS}
            print(epsilon, {m: round(p.noise.multiplier, 4) for m, p in plans.items()})


if __name__ == "__main__":
    main()
