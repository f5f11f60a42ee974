"""Marathe et al. 2023, Figures 1 and 3: federations of made-up digits under each accounting.

Federations are simulated in memory. Their plans (rounds, noise, denominators, caps) are those of
`FederationPlan` and `Published`. A round is one step of all silos from the same weights, so that
one pass gives every item's gradient; what a silo adds up is held against the reference engine by a
test. There is no store and no ledger, and draws and noise come from a seed: **no ε is claimed**,
and only made-up data may be used. Made-up hands have no privacy to lose, so their numbers may be
counted and then declared.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from papers.drawing import Figure, Row, panels, save
from papers.images import SIDE, ImageNetwork, digits
from papers.published import (
    HIGRADAVG,
    LOCAL_GROUP,
    USER_LDP,
    Published,
    Reduction,
    flaws_of,
)
from userdp.federated.algorithms import Declared
from userdp.federated.federation_plan import FederationPlan, ModelSpec
from userdp.federated.simulation import HELD_OUT, spread
from userdp.plans import Budget, Plan
from userdp.sampling.base import Indices

LOCAL_ITEM, FEDAVG = "local-item-dp", "fedavg"
TIGHT, PAPER_SQRT, PAPER_LINEAR, NONE = "tight", "paper-sqrt", "paper-linear", "none"
"""What set the noise and the rounds: what is claimed; what was published, by either reduction of
rounds; nothing."""
REDUCTIONS = {PAPER_SQRT: Reduction.PUBLISHED, PAPER_LINEAR: Reduction.LINEAR}
ALPHAS: tuple[float | None, ...] = (None, 2.0, 4.0, 8.0, 16.0)
"""Spreads of a subject's items over silos, from uniform on: those of Marathe et al., Figure 3."""
SEEDS = (0, 1, 2, 3, 4)
TUNING_SEED = 100
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
0.03, 0.3, 1, 3 and 10 the one of least loss, on the tuning seed): ``designs/marathe.toml``. Rounds
of LocalItemDP are not reduced: it has one published cell."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """The constants that all cells share.

    Args:
        silos: n, all of which are in every round; a subject may be in all of them.
        subjects: of the federation.
        items_per_subject: their mean number.
        epsilon: of the budget.
        delta: of the budget.
        planned_rounds: R, before a reduction.
        batch: items of a silo's step: exactly, or the expectation over the declared number.
        clip_norm: C.
        width: of LEAF's network.
        cap: of a subject's items in a silo under `TIGHT`; LocalItemDP has none.
    """

    silos: int = 16
    subjects: int = 1500
    items_per_subject: float = 24.0
    epsilon: float = 4.0
    delta: float = 1e-5
    planned_rounds: int = 64
    batch: int = 16
    clip_norm: float = 1.0
    width: int = 2
    cap: int = 2


SIZE = Size()


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
        seen: Counter[tuple[int, int]] = Counter()
        keep = np.zeros(len(self.silos), dtype=bool)
        for index, pair in enumerate(zip(self.silos.tolist(), self.subjects.tolist(), strict=True)):
            seen[pair] += 1
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
    hands = digits(subjects=size.subjects, items_per_subject=size.items_per_subject, seed=seed)
    parts = spread(hands, silos=size.silos, most=size.silos, seed=seed, alpha=alpha)
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


def is_capped(algorithm: str, accounting: str) -> bool:
    """Whether a cell caps a subject's items; LocalItemDP protects items, and no paper caps any."""
    return accounting == TIGHT and algorithm not in (LOCAL_ITEM, FEDAVG)


@cache
def plan_of(
    size: Size, algorithm: str, accounting: str, alpha: float | None, largest: int
) -> FederationPlan | Published:
    """The plan of a cell at learning rate 1.

    Items and subjects of a silo are declared as the tuning seed's means over silos, rounded to
    hundreds; items those that the cap leaves, so that a step of `TIGHT` expects ``batch`` of them.

    Args:
        size: what all cells share.
        algorithm: by name.
        accounting: `TIGHT`, a name of `REDUCTIONS`, or `NONE`.
        alpha: of the spread.
        largest: items of the largest subject in a silo; the published accounting reads it.
    """
    capped = is_capped(algorithm, accounting)
    data = federation(size, TUNING_SEED, alpha)
    left = len((data.capped(size.cap) if capped else data).silos)
    items, subjects = (
        max(100, int(round(n / size.silos, -2))) for n in (left, len(data.group_sizes))
    )
    constants: dict[str, Any] = {
        "declared": Declared(
            items_per_silo=items,
            subjects_per_silo=subjects,
            group_size=size.cap if capped else largest,
            batch_size=float(min(size.batch, items)),
            local_steps=1,
            l2_clip_norm=size.clip_norm,
        ),
        "budget": Budget(target_epsilon=size.epsilon, target_delta=size.delta),
        "algorithm": algorithm,
        "silos": size.silos,
        "silos_per_round": size.silos,
        "silos_per_subject": size.silos,
        "rounds": size.planned_rounds,
        "learning_rate": 1.0,
        # The network is made by `curve`: nothing of a plan's price asks for it.
        "model": ModelSpec(tokenizer_sha256="", vocab_size=256, seq_len=1 + SIDE**2),
    }
    if accounting in REDUCTIONS:
        return Published.calibrated(reduction=REDUCTIONS[accounting], **constants)
    return FederationPlan.calibrated(**constants)


def item_gradients(model: nn.Module, rows: Tensor) -> Tensor:
    """Each item's gradient, float32, (items, parameters), in the order of parameters."""
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(weights: dict[str, Tensor], row: Tensor) -> Tensor:
        logits = functional_call(model, weights, (row[None],))
        return nn.functional.cross_entropy(logits, row[:1])

    gradients = vmap(grad(loss), in_dims=(None, 0))(weights, rows)
    return torch.cat([gradients[name].flatten(1) for name in weights], dim=1)


def silo_sum(gradients: Tensor, subjects: Indices, *, algorithm: str, norm: float) -> Tensor:
    """What a silo's step adds up before its noise, from the gradients of its drawn items.

    HiGradAvgDP: of each subject the mean of its clipped gradients. UserLDP: the clipped mean of
    all. Others: clipped gradients.
    """
    if not len(gradients):
        return torch.zeros(gradients.shape[1])
    if algorithm == USER_LDP:
        gradients = gradients.mean(0, keepdim=True)
    own = gradients * (norm / gradients.norm(dim=1, keepdim=True)).clamp(max=1.0)
    if algorithm == HIGRADAVG:
        _, where, counts = np.unique(subjects, return_inverse=True, return_counts=True)
        own = own / torch.from_numpy(counts[where])[:, None]
    total: Tensor = own.sum(0)
    return total


def curve(
    size: Size, algorithm: str, accounting: str, alpha: float | None, *, rate: float, seed: int
) -> Iterator[Row]:
    """One federation: a row after each round, with accuracy and mean loss on held-out items.

    Args:
        size: what all cells share.
        algorithm: by name.
        accounting: what set noise and rounds.
        alpha: of the spread.
        rate: of learning.
        seed: of hands, spread and first weights; and, with the cell's name, of draws and noise, so
            that a difference of cells scatters as two independent runs do.
    """
    data = federation(size, seed, alpha)
    made = plan_of(size, algorithm, accounting, alpha, int(data.group_sizes.max()))
    published = made if isinstance(made, Published) else None
    plan = made.plan if isinstance(made, Published) else made
    local = plan.local if isinstance(plan.local, Plan) else None
    if is_capped(algorithm, accounting):
        data = data.capped(size.cap)
    model = ImageNetwork(width=size.width, seed=seed)
    cell = int.from_bytes(hashlib.sha256(f"{algorithm} {bool(published)}".encode()).digest()[:4])
    draw = np.random.default_rng([seed, 2, cell, plan.rounds])
    noise = torch.Generator().manual_seed(int(draw.integers(2**62)))
    of_silo = [np.flatnonzero(data.silos == silo) for silo in range(size.silos)]
    for number in range(1, plan.rounds + 1):
        drawn = []
        for own in of_silo:
            if local and not published:  # Poisson, as `TIGHT` accounts for it
                drawn.append(own[draw.random(len(own)) < local.sampling.chance(1)])
            else:
                drawn.append(draw.choice(own, min(size.batch, len(own)), replace=False))
        gradients = item_gradients(model, data.rows[torch.from_numpy(np.concatenate(drawn))])
        total = torch.zeros(gradients.shape[1])
        parts = torch.split(gradients, [len(mine) for mine in drawn])
        for mine, part in zip(drawn, parts, strict=True):
            if local is None:
                total += part.mean(0)
                continue
            subjects, norm = data.subjects[mine], local.clip.l2_norm
            counts = np.unique(subjects, return_counts=True)[1]
            summed = silo_sum(part, subjects, algorithm=algorithm, norm=norm)
            std = (published.noise_of(counts) if published else local.noise.multiplier) * norm
            summed = summed + std * torch.randn(summed.shape, generator=noise)
            total += summed / (published.denominator_of(counts) if published else local.denominator)
        change, at = rate * total / size.silos, 0
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(change[at : at + parameter.numel()].view_as(parameter))
                at += parameter.numel()
            logits, classes = model(data.held_out), data.held_out[:, 0]
        yield {
            "alpha": alpha or 1.0,
            "algorithm": algorithm,
            "accounting": accounting,
            "seed": seed,
            "round": number,
            "accuracy": float((logits.argmax(1) == classes).float().mean()),
            "loss": float(nn.functional.cross_entropy(logits, classes)),
            "noise_multiplier": local.noise.multiplier if local else 0.0,
            "rounds": plan.rounds,
            "planned_rounds": size.planned_rounds,
            "flaws": flaws_of(algorithm, REDUCTIONS[accounting]) if published else "",
        }


def figure_1() -> list[Row]:
    """Accuracy and loss over rounds."""
    return [
        row
        for seed in SEEDS
        for cell, rate in RATES.items()
        for row in curve(SIZE, *cell, None, rate=rate, seed=seed)
    ]


def draw_figure_1(rows: Sequence[Row], path: Path) -> None:
    """A line for each algorithm and accounting."""
    figure, axes = panels(2, width=6.4, height=4.6)
    for axis, key in zip(axes, ("accuracy", "loss"), strict=True):
        _draw_cells(axis, rows, "round", key)
        axis.set_xlabel("round")
    axes[1].set_ylim(top=min(4.0, axes[1].get_ylim()[1]))
    legend = axes[0].get_legend_handles_labels()
    figure.legend(*legend, fontsize=7, ncols=4, loc="outside lower center")
    save(figure, path, title=f"{_title()} (Marathe et al. 2023, Figure 1)")


def figure_3() -> list[Row]:
    """Accuracy after the last round against α of the subjects' spread over silos."""
    return [
        list(curve(SIZE, *cell, alpha, rate=rate, seed=seed))[-1]
        for seed in SEEDS
        for alpha in ALPHAS
        for cell, rate in RATES.items()
    ]


def draw_figure_3(rows: Sequence[Row], path: Path) -> None:
    """Accuracy against α; uniform spread stands at α = 1."""
    figure, (axis,) = panels(1, width=9.0, height=4.6)
    _draw_cells(axis, rows, "alpha", "accuracy")
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter("{x:g}")
    axis.set_xlabel("α (1: uniform)")
    axis.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.01, 1.0))
    title = f"{_title()}: spread of subjects over silos (Marathe et al. 2023, Figure 3)"
    save(figure, path, title=title)


def _title() -> str:
    rounds = f"{SIZE.planned_rounds} rounds planned"
    return f"digits, {SIZE.silos} silos, {rounds}, ε = {SIZE.epsilon:g}, δ = {SIZE.delta:g}"


_STYLES = {TIGHT: "o-", PAPER_SQRT: "x--", PAPER_LINEAR: "+:", NONE: "s-"}
_NAMES = {TIGHT: ", tight", PAPER_SQRT: ", paper, R/√s", PAPER_LINEAR: ", paper, R/s", NONE: ""}


def _draw_cells(axis: Any, rows: Sequence[Row], x: str, y: str) -> None:
    """A line for each algorithm (its colour) and accounting (its style), over seeds.

    Means, and bands of Student's 95% intervals of them.
    """
    algorithms = list(dict.fromkeys(row["algorithm"] for row in rows))
    for algorithm, accounting in dict.fromkeys((r["algorithm"], r["accounting"]) for r in rows):
        line = [r for r in rows if (r["algorithm"], r["accounting"]) == (algorithm, accounting)]
        ticks = list(dict.fromkeys(row[x] for row in line))
        values = [[row[y] for row in line if row[x] == tick] for tick in ticks]
        means = np.array([mean(v) for v in values])
        halves = np.array([stats.sem(v) * stats.t.ppf(0.975, len(v) - 1) for v in values])
        flaws = f" (unsound: {line[0]['flaws']})" if line[0]["flaws"] else ""
        color = f"C{algorithms.index(algorithm)}"
        label = f"{algorithm}{_NAMES[accounting]}{flaws}"
        axis.plot(ticks, means, _STYLES[accounting], markersize=3, color=color, label=label)
        axis.fill_between(ticks, means - halves, means + halves, color=color, alpha=0.12, lw=0)
    axis.set_ylabel(f"test {y}")
    axis.grid(alpha=0.3)


FIGURES = {
    "marathe-figure-1": Figure(rows=figure_1, draw=draw_figure_1),
    "marathe-figure-3": Figure(rows=figure_3, draw=draw_figure_3),
}
