"""The federations behind the figures of Marathe et al. 2023: digits, 16 silos, both accountings.

Sizes are chosen so that a figure takes a minute or two, not to reach the paper's accuracy.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from userdp.federated.accounting import AccountingName, Algorithm, Reduction
from userdp.federated.data import SubjectItems, digits, spread
from userdp.federated.models import accuracy, build_model, put_weights
from userdp.federated.plan import FederationPlan, ModelKind, ModelSpec
from userdp.federated.rounds import RoundFacts, Weights
from userdp.federated.simulation import make_federation, run_in_process
from userdp.papers.marathe.bounds import Descent
from userdp.papers.table import Row

SILOS, EPSILON, DELTA = 16, 4.0, 1e-5
SUBJECTS, ITEMS = 1000, 24.0
ROUNDS, CLIP, CAP = 16, 1.0, 2
ALPHAS: tuple[float | None, ...] = (None, 2.0, 4.0, 8.0, 16.0)
MODEL = ModelSpec(kind=ModelKind.CNN, width=2, inputs=8, outputs=10)
RATES = {
    Algorithm.FEDAVG: 0.3,
    Algorithm.LOCAL_ITEM: 0.5,
    Algorithm.LOCAL_GROUP: 2.0,
    Algorithm.HIGRADAVG: 2.0,
    Algorithm.USER_LDP: 0.03,
}
_STYLES = {"tight": "o-", "paper": "x--", "none": "s-"}
SHAPES = {AccountingName.PAPER: (4, 16.0), AccountingName.TIGHT: (1, 64.0)}
"""Local steps a round and items a step: the paper's few small batches, and one larger."""


def cells() -> Iterator[tuple[Algorithm, AccountingName]]:
    """Every algorithm with every accounting; FedAvg has none."""
    yield Algorithm.FEDAVG, AccountingName.TIGHT
    for algorithm in Algorithm:
        if algorithm.private:
            for accounting in AccountingName:
                yield algorithm, accounting


def data() -> SubjectItems:
    """Made-up handwritten digits by subject."""
    return digits(subjects=SUBJECTS, items_per_subject=ITEMS)


def small_plan(
    algorithm: Algorithm, accounting: AccountingName, silos: list[SubjectItems]
) -> FederationPlan:
    """The plan of a cell, with the silos' mean sizes as the declared ones.

    Made-up hands have no privacy to lose; with people's data these numbers are declared.
    """
    sound = accounting is AccountingName.TIGHT and algorithm.for_subjects
    steps, batch = SHAPES[AccountingName.TIGHT if sound else AccountingName.PAPER]
    items = max(1, round(float(np.mean([silo.items for silo in silos]))))
    largest = max(int(silo.counts.max()) for silo in silos if silo.items)
    return FederationPlan.calibrated(
        target_epsilon=EPSILON,
        reduction=Reduction.LINEAR,
        algorithm=algorithm,
        accounting=accounting,
        silos=len(silos),
        silos_per_round=len(silos),
        silos_per_subject=len(silos),
        rounds=ROUNDS,
        local_steps=steps,
        sampling_probability=min(1.0, batch / items),
        items_per_silo=items,
        subjects_per_silo=max(1, round(float(np.mean([len(silo.counts) for silo in silos])))),
        group_size=CAP if sound else largest,
        l2_clip_norm=CLIP,
        learning_rate=RATES[algorithm],
        target_delta=DELTA,
        model=MODEL,
    )


def train_cell(
    algorithm: Algorithm,
    accounting: AccountingName,
    train: SubjectItems,
    held: SubjectItems,
    *,
    alpha: float | None,
    every: bool,
) -> list[Row]:
    """Train one federation: a row after each round, or only after the last one."""
    draw = np.random.default_rng(3)
    silos = spread(train, SILOS, draw, alpha=alpha)
    if accounting is AccountingName.TIGHT and algorithm.for_subjects:
        silos = [silo.capped(CAP, draw)[0] for silo in silos]
    silos = [silo for silo in silos if silo.items]
    plan = small_plan(algorithm, accounting, silos)
    model, _ = build_model(plan.model)
    start = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    rows_, lengths = torch.from_numpy(held.rows), torch.from_numpy(held.lengths)
    found: list[Row] = []

    def after(facts: RoundFacts, weights: Weights) -> None:
        if not every and facts.round != plan.rounds:
            return
        put_weights(model, weights)
        right, loss = accuracy(model, plan.model, rows_, lengths)
        now = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        noise = plan.noise_multiplier * plan.l2_clip_norm / plan.denominator
        descent = Descent(
            radius=max(1e-9, float((now - start).norm())),
            lipschitz=plan.l2_clip_norm,
            learning_rate=plan.learning_rate,
            steps=facts.round * plan.local_steps,
            dimensions=len(now),
            items=max(1, train.items),
            noise_std=noise / np.sqrt(plan.silos),
        )
        k = plan.group_size if algorithm is Algorithm.HIGRADAVG else 1
        found.append(
            {
                "alpha": alpha or 1.0,
                "algorithm": str(algorithm),
                "accounting": str(accounting) if algorithm.private else "none",
                "round": facts.round,
                "accuracy": right,
                "loss": loss,
                "excess_loss_bound": descent.excess_loss(group_size=k),
                "noise_multiplier": plan.noise_multiplier,
                "rounds": plan.rounds,
                "planned_rounds": plan.planned_rounds or plan.rounds,
                "flaws": "".join(plan.flaws),
            }
        )

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "federation"
        make_federation(folder, plan, silos)
        run_in_process(folder, plan, on_round=after)
    return found


def lines(rows: Sequence[Row]) -> list[tuple[str, list[Row], str, str]]:
    """(label, rows, style, colour) of each algorithm and accounting."""
    algorithms = list(dict.fromkeys(row["algorithm"] for row in rows))
    found = []
    for algorithm, accounting in dict.fromkeys((r["algorithm"], r["accounting"]) for r in rows):
        line = [r for r in rows if (r["algorithm"], r["accounting"]) == (algorithm, accounting)]
        flaws = f" (unsound: {line[0]['flaws']})" if line[0]["flaws"] else ""
        label = algorithm if accounting == "none" else f"{algorithm}, {accounting}{flaws}"
        found.append((label, line, _STYLES[accounting], f"C{algorithms.index(algorithm)}"))
    return found
