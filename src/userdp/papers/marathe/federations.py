"""The federations behind the figures of Marathe et al. 2023: digits, 16 silos, both accountings.

Sizes are chosen so that a figure takes a minute or two, not to reach the paper's accuracy.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from userdp.data.records import Record
from userdp.data.splits import Split
from userdp.data.store import UserStore
from userdp.federated.algorithms import ALGORITHMS, Declared
from userdp.federated.data import HELD_OUT, number_tokenizer, spread
from userdp.federated.models import accuracy, build_model, put_weights
from userdp.federated.plan import STORE, FederationPlan, LeafCNN
from userdp.federated.rounds import RoundFacts, Weights
from userdp.federated.silo import silo_folder
from userdp.federated.simulation import all_units, make_federation, run_in_process
from userdp.gradients import Units
from userdp.papers.marathe.bounds import excess_loss_bound
from userdp.papers.marathe.digits import digits
from userdp.papers.marathe.published import (
    FOR_SUBJECTS,
    HIGRADAVG,
    Published,
    Reduction,
    flaws_of,
)
from userdp.papers.table import Row
from userdp.plans import Budget, Plan

SILOS, EPSILON, DELTA = 16, 4.0, 1e-5
SUBJECTS, ITEMS = 1000, 24.0
ROUNDS, CLIP, CAP = 16, 1.0, 2
ALPHAS: tuple[float | None, ...] = (None, 2.0, 4.0, 8.0, 16.0)
RATES = {
    "fedavg": 0.3,
    "local-item-dp": 0.5,
    "local-group-dp": 2.0,
    "higradavg-dp": 2.0,
    "user-ldp": 0.03,
}
TIGHT, PAPER, NONE = "tight", "paper", "none"
"""What set the noise: what is claimed; what was published; nothing."""
_STYLES = {TIGHT: "o-", PAPER: "x--", NONE: "s-"}
SHAPES = {PAPER: (4, 16.0), TIGHT: (1, 64.0)}
"""Local steps a round and items a step: the paper's few small batches, and one larger."""


def cells() -> Iterator[tuple[str, str]]:
    """Every algorithm with both accountings; FedAvg has none."""
    for algorithm in ALGORITHMS:
        yield from [
            (algorithm, one) for one in ((NONE,) if algorithm == "fedavg" else (TIGHT, PAPER))
        ]


def data() -> list[Record]:
    """Made-up handwritten digits by subject."""
    return digits(subjects=SUBJECTS, items_per_subject=ITEMS)


def small_plan(
    algorithm: str, accounting: str, parts: Sequence[Sequence[Record]]
) -> FederationPlan | Published:
    """The plan of a cell, with the silos' mean sizes as the declared ones.

    Made-up hands have no privacy to lose; with people's data these numbers are declared.
    """
    sound = accounting == TIGHT and algorithm in FOR_SUBJECTS
    steps, batch = SHAPES[TIGHT if sound else PAPER]
    counts = [np.unique([r.user for r in part], return_counts=True)[1] for part in parts]
    items = max(1, round(float(np.mean([(1 - HELD_OUT) * own.sum() for own in counts]))))
    tokenizer = number_tokenizer()
    constants: dict[str, Any] = {
        "declared": Declared(
            batch_size=min(float(items), batch),
            items_per_silo=items,
            subjects_per_silo=max(1, round(float(np.mean([len(own) for own in counts])))),
            group_size=CAP if sound else max(int(own.max()) for own in counts),
            l2_clip_norm=CLIP,
            local_steps=steps,
            budget=Budget(target_delta=DELTA, target_epsilon=EPSILON),
        ),
        "algorithm": algorithm,
        "silos": len(parts),
        "silos_per_round": len(parts),
        "silos_per_subject": len(parts),
        "rounds": ROUNDS,
        "learning_rate": RATES[algorithm],
        "model": LeafCNN(
            tokenizer_sha256=tokenizer.sha256,
            vocab_size=tokenizer.vocab_size,
            seq_len=65,
            width=2,
            classes=10,
        ),
    }
    if accounting == PAPER:
        return Published.calibrated(reduction=Reduction.PUBLISHED, **constants)
    return FederationPlan.calibrated(**constants)


def train_cell(
    algorithm: str,
    accounting: str,
    records: Sequence[Record],
    *,
    alpha: float | None,
    every: bool,
) -> list[Row]:
    """Train one federation: a row after each round, or only after the last one."""
    parts = spread(records, silos=SILOS, most=SILOS, alpha=alpha)
    made = small_plan(algorithm, accounting, parts)
    plan = made.plan if isinstance(made, Published) else made
    model, loss = build_model(plan.model)
    start = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    held: list[Units] = []
    rows: list[Row] = []

    def after(facts: RoundFacts, weights: Weights) -> None:
        if not every and facts.round != plan.rounds:
            return
        put_weights(model, weights)
        sizes, right = list(map(len, held)), [accuracy(model, units) for units in held]
        with torch.no_grad():
            losses = torch.cat([loss(model, u.input_ids, u.lengths) for u in held])
        now = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        local = plan.local if isinstance(plan.local, Plan) else None
        bound = excess_loss_bound(
            radius=float((now - start).norm()),
            lipschitz=CLIP,
            learning_rate=plan.learning_rate,
            steps=facts.round * plan.local.steps,
            dimensions=len(now),
            items=len(records),
            noise_std=local.noise_std / local.denominator / np.sqrt(SILOS) if local else 0.0,
            group_size=local.sampling.group_size if local and algorithm == HIGRADAVG else 1,
        )
        rows.append(
            {
                "alpha": alpha or 1.0,
                "algorithm": algorithm,
                "accounting": accounting,
                "round": facts.round,
                "accuracy": float(np.average(right, weights=sizes)),
                "loss": float(losses.mean()),
                "excess_loss_bound": bound,
                "noise_multiplier": local.noise.multiplier if local else 0.0,
                "rounds": plan.rounds,
                "planned_rounds": ROUNDS,
                "flaws": flaws_of(algorithm, Reduction.PUBLISHED) if accounting == PAPER else "",
            }
        )

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "federation"
        make_federation(folder, plan, records, tokenizer=number_tokenizer(), alpha=alpha)
        stores = [UserStore.open(silo_folder(folder, index) / STORE) for index in range(SILOS)]
        held += [all_units(store.split(Split.HELD_OUT_EXAMPLES)) for store in stores]
        held = [units for units in held if len(units)]
        if isinstance(made, Published):
            made.run(stores, on_round=after)
        else:
            run_in_process(folder, plan, on_round=after)
    return rows


def draw_cells(axis: Any, rows: Sequence[Row], x: str, y: str) -> None:
    """A line for each algorithm (its colour) and accounting (its style)."""
    algorithms = list(dict.fromkeys(row["algorithm"] for row in rows))
    for algorithm, accounting in dict.fromkeys((r["algorithm"], r["accounting"]) for r in rows):
        line = [r for r in rows if (r["algorithm"], r["accounting"]) == (algorithm, accounting)]
        flaws = f" (unsound: {line[0]['flaws']})" if line[0]["flaws"] else ""
        label = algorithm if accounting == NONE else f"{algorithm}, {accounting}{flaws}"
        axis.plot(
            [row[x] for row in line],
            [row[y] for row in line],
            _STYLES[accounting],
            color=f"C{algorithms.index(algorithm)}",
            label=label,
            markersize=4,
        )
    axis.set_ylabel(f"test {y}")
    axis.grid(alpha=0.3)
