"""Federations of made-up digits for the figures of Marathe et al. 2023: sizes, data and plans.

Made-up hands have no privacy to lose, so their numbers may be counted and then declared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from papers.marathe.published import (
    HIGRADAVG,
    LOCAL_GROUP,
    USER_LDP,
    Published,
    Reduction,
)
from userdp.data.records import Record
from userdp.federated.algorithms import Declared
from userdp.federated.data import HELD_OUT, number_tokenizer, spread
from userdp.federated.digits import digits
from userdp.federated.plan import FederationPlan, LeafCNN
from userdp.plans import Budget
from userdp.sampling.coins import Indices

LOCAL_ITEM, FEDAVG = "local-item-dp", "fedavg"
TIGHT, PAPER_SQRT, PAPER_LINEAR, NONE = "tight", "paper-sqrt", "paper-linear", "none"
"""What set the noise and the rounds: what is claimed; what was published, by either reduction of
rounds; nothing."""
REDUCTIONS = {PAPER_SQRT: Reduction.PUBLISHED, PAPER_LINEAR: Reduction.LINEAR}


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """The constants that all cells share.

    Args:
        silos: n; a subject may be in all of them.
        silos_per_round: m.
        subjects: of the federation.
        items_per_subject: their mean number.
        epsilon: of the budget.
        delta: of the budget.
        planned_rounds: R, before a reduction.
        local_steps: T; only 1 is simulated.
        batch: items of a silo's step: exactly, or the expectation over the declared number.
        clip_norm: C.
        width: of LEAF's network.
        cap: of a subject's items in a silo under `TIGHT`; LocalItemDP has none.
        declared_after_cap: whether the declared items of a silo are those that the cap leaves, so
            that a step of `TIGHT` expects ``batch`` items. Else all of them are declared, and a
            step expects fewer items than the denominator counts.
        tuning_seed: from whose federation the declared numbers are taken.
    """

    silos: int = 16
    silos_per_round: int = 16
    subjects: int = 1500
    items_per_subject: float = 24.0
    epsilon: float = 4.0
    delta: float = 1e-5
    planned_rounds: int = 64
    local_steps: int = 1
    batch: int = 16
    clip_norm: float = 1.0
    width: int = 2
    cap: int = 2
    declared_after_cap: bool = True
    tuning_seed: int = 100

    def __post_init__(self) -> None:
        if self.local_steps != 1:
            raise ValueError("a round is simulated as one step of every silo")


@dataclass(frozen=True, kw_only=True, slots=True)
class Federation:
    """The training items of all silos, and the held-out ones together.

    Args:
        rows: int64, (items, 1 + pixels): the class, then the pixels.
        silos: the silo of each item.
        subjects: the subject of each item, numbered over all silos.
        held_out: int64, (held-out items, 1 + pixels).
    """

    rows: Tensor
    silos: Indices
    subjects: Indices
    held_out: Tensor

    @property
    def group_sizes(self) -> Indices:
        """How many items of a subject a silo holds, for each pair that has any."""
        return np.unique(np.stack([self.silos, self.subjects]), axis=1, return_counts=True)[1]

    def capped(self, most: int) -> Federation:
        """Without the items of a subject in a silo over ``most``."""
        seen: dict[tuple[int, int], int] = {}
        keep = np.zeros(len(self.silos), dtype=bool)
        for index, pair in enumerate(zip(self.silos.tolist(), self.subjects.tolist(), strict=True)):
            seen[pair] = seen.get(pair, 0) + 1
            keep[index] = seen[pair] <= most
        return replace(
            self,
            rows=self.rows[torch.from_numpy(keep)],
            silos=self.silos[keep],
            subjects=self.subjects[keep],
        )


@cache
def federation(size: Size, seed: int, alpha: float | None) -> Federation:
    """Hands of a seed, spread over silos of which each holds a random fifth of its items out."""
    parts = spread(_hands(size, seed), silos=size.silos, most=size.silos, seed=seed, alpha=alpha)
    draw = np.random.default_rng([seed, 1])
    rows, silos, subjects, out = [], [], [], []
    for silo, part in enumerate(parts):
        for record in part:
            label, _, pixels = record.text.decode().partition(": ")
            rows.append([int(label), *map(int, pixels.split())])
            silos.append(silo)
            subjects.append(int(record.user.split()[1]))
            out.append(draw.random() < HELD_OUT)
    table, held = torch.tensor(rows), np.array(out)
    kept = torch.from_numpy(~held)
    return Federation(
        rows=table[kept],
        silos=np.array(silos)[~held],
        subjects=np.array(subjects)[~held],
        held_out=table[~kept],
    )


@cache
def _hands(size: Size, seed: int) -> list[Record]:
    return digits(subjects=size.subjects, items_per_subject=size.items_per_subject, seed=seed)


@cache
def declared_sizes(size: Size, alpha: float | None, *, capped: bool) -> tuple[int, int]:
    """Declared items and subjects of a silo: the tuning seed's means, rounded to hundreds."""
    data = federation(size, size.tuning_seed, alpha)
    pairs = len(data.group_sizes)
    items = len((data.capped(size.cap) if capped and size.declared_after_cap else data).silos)
    of_items, of_pairs = (max(100, int(round(n / size.silos, -2))) for n in (items, pairs))
    return of_items, of_pairs


def is_capped(algorithm: str, accounting: str) -> bool:
    """Whether a cell caps a subject's items; LocalItemDP protects items, and no paper caps any."""
    return accounting == TIGHT and algorithm != LOCAL_ITEM


@cache
def plan_of(
    size: Size, algorithm: str, accounting: str, alpha: float | None, largest: int
) -> FederationPlan | Published:
    """The plan of a cell at learning rate 1.

    Args:
        size: what all cells share.
        algorithm: by name.
        accounting: `TIGHT`, a name of `REDUCTIONS`, or `NONE`.
        alpha: of the spread.
        largest: items of the largest subject in a silo; the published accounting reads it.
    """
    capped = is_capped(algorithm, accounting)
    items, subjects = declared_sizes(size, alpha, capped=capped)
    tokenizer = number_tokenizer()
    constants: dict[str, Any] = {
        "declared": Declared(
            items_per_silo=items,
            subjects_per_silo=subjects,
            group_size=size.cap if capped else largest,
            batch_size=float(min(size.batch, items)),
            local_steps=size.local_steps,
            l2_clip_norm=size.clip_norm,
            budget=Budget(target_epsilon=size.epsilon, target_delta=size.delta),
        ),
        "algorithm": algorithm,
        "silos": size.silos,
        "silos_per_round": size.silos_per_round,
        "silos_per_subject": size.silos,
        "rounds": size.planned_rounds,
        "learning_rate": 1.0,
        "model": LeafCNN(
            tokenizer_sha256=tokenizer.sha256,
            vocab_size=tokenizer.vocab_size,
            seq_len=65,
            width=size.width,
            classes=10,
        ),
    }
    if accounting in REDUCTIONS:
        return Published.calibrated(reduction=REDUCTIONS[accounting], **constants)
    return FederationPlan.calibrated(**constants)


ALPHAS: tuple[float | None, ...] = (None, 2.0, 4.0, 8.0, 16.0)
"""Spreads of a subject's items over silos, from uniform on: those of Marathe et al., Figure 3."""
SEEDS = (0, 1, 2, 3, 4)
RATES: dict[tuple[str, str], float] = {
    (FEDAVG, NONE): 0.3,
    (LOCAL_ITEM, TIGHT): 1.0,
    (LOCAL_ITEM, PAPER_SQRT): 1.0,
    (LOCAL_GROUP, TIGHT): 1.0,
    (LOCAL_GROUP, PAPER_SQRT): 3.0,
    (LOCAL_GROUP, PAPER_LINEAR): 3.0,
    (HIGRADAVG, TIGHT): 1.0,
    (HIGRADAVG, PAPER_SQRT): 1.0,
    (HIGRADAVG, PAPER_LINEAR): 1.0,
    (USER_LDP, TIGHT): 0.03,
    (USER_LDP, PAPER_SQRT): 0.03,
    (USER_LDP, PAPER_LINEAR): 0.03,
}
"""The cells of Figures 1 and 3, with the learning rates that one rule chose for all of them (of
0.03, 0.3, 1, 3 and 10 the one of least loss, on a seed of its own): `python -m benchmarks.marathe`,
design ``marathe.toml``. Rounds of LocalItemDP are not reduced: it has one published cell."""
