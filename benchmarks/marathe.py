"""Marathe et al. 2023 with both reductions of rounds, at equal batches and local steps.

    python -m benchmarks.marathe run      # goes on where it stopped
    python -m benchmarks.marathe table

The design is `docs/results/papers/designs/marathe.toml`, committed before the first run; each row
of `docs/results/papers/marathe.jsonl` carries its digest.

Runs are simulated in memory: the plans (rounds, noise, denominators, caps) are those of
`FederationPlan` and `Published`, and a round is one step of all silos from the same weights, so
that one pass gives every item's gradient. There is no store and no ledger, and draws and noise come
from a seed: no ε is claimed for a row, and only made-up data may be used.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from userdp.federated.algorithms import Declared
from userdp.federated.data import HELD_OUT, number_tokenizer, spread
from userdp.federated.models import build_model, image_loss
from userdp.federated.plan import FederationPlan, LeafCNN
from userdp.papers.marathe.digits import digits
from userdp.papers.marathe.published import (
    HIGRADAVG,
    USER_LDP,
    Published,
    Reduction,
    flaws_of,
)
from userdp.papers.studies.runs import Row, append_row, name_of, read_rows
from userdp.plans import Budget, Plan

DESIGN = Path("docs/results/papers/designs/marathe.toml")
RESULTS = Path("docs/results/papers/marathe.jsonl")
TIGHT = "tight"
REDUCTIONS = {"paper-sqrt": Reduction.PUBLISHED, "paper-linear": Reduction.LINEAR}


@dataclass(frozen=True, kw_only=True)
class Federation:
    """The items of all silos.

    Args:
        rows: int64, (items, 1 + pixels): the class, then the pixels.
        silos: the silo of each item.
        subjects: the subject of each item, numbered over all silos.
        held_out: int64, (held-out items, 1 + pixels).
    """

    rows: Tensor
    silos: np.ndarray
    subjects: np.ndarray
    held_out: Tensor

    @property
    def group_sizes(self) -> np.ndarray:
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
def federation(seed: int, alpha: float | None) -> Federation:
    """Hands of a seed, spread over silos of which each holds a random fifth of its items out."""
    common = design()["common"]
    records = _hands(seed)
    parts = spread(records, silos=common["silos"], most=common["silos"], seed=seed, alpha=alpha)
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
def _hands(seed: int) -> Any:
    common = design()["common"]
    return digits(
        subjects=common["subjects"], items_per_subject=common["items_per_subject"], seed=seed
    )


@cache
def design() -> dict[str, Any]:
    return tomllib.loads(DESIGN.read_text(encoding="utf-8"))


@cache
def sizes(alpha: float | None) -> tuple[int, int]:
    """Declared items and subjects of a silo: the tuning seed's means, rounded to hundreds."""
    data, silos = federation(design()["tuning_seed"], alpha), design()["common"]["silos"]
    pairs = len(data.group_sizes)
    return tuple(max(100, int(round(n / silos, -2))) for n in (len(data.silos), pairs))  # type: ignore[return-value]


@cache
def plan_of(
    algorithm: str, accounting: str, alpha: float | None, largest: int
) -> FederationPlan | Published:
    """The plan of a cell at learning rate 1.

    Args:
        algorithm: by name.
        accounting: ``tight``, a name of `REDUCTIONS`, or ``none``.
        alpha: of the spread.
        largest: items of the largest subject in a silo; the published accounting reads it.
    """
    common = design()["common"]
    items, subjects = sizes(alpha)
    tokenizer = number_tokenizer()
    # LocalItemDP protects items: nothing is capped, as in the library's own benchmark.
    capped = accounting == TIGHT and algorithm != "local-item-dp"
    constants: dict[str, Any] = {
        "declared": Declared(
            items_per_silo=items,
            subjects_per_silo=subjects,
            group_size=common["cap"] if capped else largest,
            batch_size=float(common["batch"]),
            local_steps=common["local_steps"],
            l2_clip_norm=common["clip_norm"],
            budget=Budget(target_epsilon=common["epsilon"], target_delta=common["delta"]),
        ),
        "algorithm": algorithm,
        "silos": common["silos"],
        "silos_per_round": common["silos_per_round"],
        "silos_per_subject": common["silos"],
        "rounds": common["planned_rounds"],
        "learning_rate": 1.0,
        "model": LeafCNN(
            tokenizer_sha256=tokenizer.sha256,
            vocab_size=tokenizer.vocab_size,
            seq_len=65,
            width=common["width"],
            classes=10,
        ),
    }
    if accounting in REDUCTIONS:
        return Published.calibrated(reduction=REDUCTIONS[accounting], **constants)
    return FederationPlan.calibrated(**constants)


def item_gradients(model: nn.Module, rows: Tensor) -> Tensor:
    """Each item's gradient, float32, (items, parameters), in the order of the model's parameters.

    One pass back gives the gradient of every layer's output; an item's weight gradient is that
    times the layer's input, unfolded where the layer is a convolution.
    """
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    layers = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear)]

    def note(_: nn.Module, given: tuple[Tensor, ...], made: Tensor) -> None:
        inputs.append(given[0].detach())
        outputs.append(made)

    hooks = [layer.register_forward_hook(note) for layer in layers]
    loss = image_loss(model, rows, torch.full((len(rows),), rows.shape[1])).sum()
    for hook in hooks:
        hook.remove()
    parts = []
    for layer, x, back in zip(layers, inputs, torch.autograd.grad(loss, outputs), strict=True):
        if isinstance(layer, nn.Conv2d):
            x = nn.functional.unfold(x, layer.kernel_size, padding=layer.padding)  # type: ignore[arg-type]
            back = back.flatten(2)
        else:
            x, back = x[:, :, None], back[:, :, None]
        parts += [torch.einsum("nol,nkl->nok", back, x).flatten(1), back.sum(2)]
    return torch.cat(parts, dim=1)


def clipped(gradients: Tensor, norm: float) -> Tensor:
    """Rows scaled to a norm of at most ``norm``."""
    return gradients * (norm / gradients.norm(dim=1, keepdim=True)).clamp(max=1.0)


def silo_sum(gradients: Tensor, subjects: np.ndarray, *, algorithm: str, norm: float) -> Tensor:
    """What a silo's step adds up before its noise, from the gradients of its drawn items.

    HiGradAvgDP: of each subject the mean of its clipped gradients. UserLDP: the clipped mean of
    all. Others: clipped gradients.
    """
    if not len(gradients):
        return torch.zeros(gradients.shape[1])
    if algorithm == USER_LDP:
        return clipped(gradients.mean(0, keepdim=True), norm)[0]
    own = clipped(gradients, norm)
    if algorithm == HIGRADAVG:
        _, where, counts = np.unique(subjects, return_inverse=True, return_counts=True)
        own = own / torch.from_numpy(counts[where])[:, None]
    return own.sum(0)


def train(made: FederationPlan | Published, data: Federation, *, rate: float, seed: int) -> Row:
    """All rounds; the held-out accuracy and loss."""
    published = made if isinstance(made, Published) else None
    plan = published.plan if published else made
    assert isinstance(plan, FederationPlan)
    local = plan.local if isinstance(plan.local, Plan) else None
    batch = design()["common"]["batch"]
    if local and not published and plan.algorithm != "local-item-dp":
        data = data.capped(local.sampling.group_size)
    model, _ = build_model(replace(plan.model, seed=seed))
    # Each cell of a seed has draws and noise of its own: a difference of cells must scatter as two
    # independent runs do.
    cell = int.from_bytes(
        hashlib.sha256(f"{plan.algorithm} {bool(published)}".encode()).digest()[:4]
    )
    draw = np.random.default_rng([seed, 2, cell, plan.rounds])
    noise = torch.Generator().manual_seed(int(draw.integers(2**62)))
    of_silo = [np.flatnonzero(data.silos == silo) for silo in range(plan.silos)]
    for _ in range(plan.rounds):
        drawn = []
        for own in of_silo:
            if local and not published:  # Poisson, as `tight` accounts for it
                drawn.append(own[draw.random(len(own)) < local.sampling.chance(1)])
            else:
                drawn.append(draw.choice(own, min(batch, len(own)), replace=False))
        everything = np.concatenate(drawn)
        gradients = item_gradients(model, data.rows[torch.from_numpy(everything)])
        total, begin = torch.zeros(gradients.shape[1]), 0
        for mine in drawn:
            part = gradients[begin : begin + len(mine)]
            begin += len(mine)
            if local is None:
                total += part.mean(0)
                continue
            subjects, norm = data.subjects[mine], local.clip.l2_norm
            counts = np.unique(subjects, return_counts=True)[1]
            summed = silo_sum(part, subjects, algorithm=plan.algorithm, norm=norm)
            std = (published.noise_of(counts) if published else local.noise.multiplier) * norm
            summed = summed + std * torch.randn(summed.shape, generator=noise)
            total += summed / (published.denominator_of(counts) if published else local.denominator)
        change, at = rate * total / plan.silos, 0
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= change[at : at + parameter.numel()].view_as(parameter)
                at += parameter.numel()
    with torch.no_grad():
        logits, classes = model(data.held_out), data.held_out[:, 0]
        loss = float(nn.functional.cross_entropy(logits, classes))
        right = float((logits.argmax(1) == classes).float().mean())
    return {
        "accuracy": right,
        "loss": loss if math.isfinite(loss) else None,
        "rounds": plan.rounds,
        "noise_multiplier": local.noise.multiplier if local else 0.0,
        "noise_per_unit": local.noise.multiplier / local.denominator if local else 0.0,
        "items": len(data.rows),
        "held_out_items": len(data.held_out),
    }


def cells() -> Iterator[Row]:
    """Uniform cells first, as the design lists them."""
    for group in design()["cells"]:
        for alpha in group.get("alpha", [None]):
            for algorithm in group["algorithm"]:
                for accounting in group["accounting"]:
                    yield {"algorithm": algorithm, "accounting": accounting, "alpha": alpha}


def next_job(rows: Sequence[Row]) -> Row | None:
    """The key of the next run: tuning first, then the seeds' uniform cells, then those of α."""
    have = {name_of(row["key"]) for row in rows}
    uniform = [cell for cell in cells() if cell["alpha"] is None]
    others = [cell for cell in cells() if cell["alpha"] is not None]
    jobs: list[Row] = [
        {**cell, "rate": rate, "seed": design()["tuning_seed"]}
        for cell in uniform
        for rate in design()["tuning"]["rates"]
    ]
    if all(name_of(job) in have for job in jobs):
        jobs = [
            {**cell, "rate": tuned(rows, cell), "seed": seed}
            for part in (uniform, others)
            for seed in design()["seeds"]
            for cell in part
        ]
    return next((job for job in jobs if name_of(job) not in have), None)


def tuned(rows: Sequence[Row], cell: Row) -> float:
    """The rate of the least held-out loss on the tuning seed."""
    tried = [row for row in rows if row["key"]["seed"] == design()["tuning_seed"]]
    tried = [row for row in tried if _is(row["key"], {**cell, "alpha": None})]
    best = min(tried, key=lambda row: math.inf if row["loss"] is None else row["loss"])
    return float(best["key"]["rate"])


def _is(key: Row, cell: Row) -> bool:
    return all(key[name] == cell[name] for name in ("algorithm", "accounting", "alpha"))


def run(key: Row) -> Row:
    """One row of the results."""
    began = time.process_time()
    data = federation(key["seed"], key["alpha"])
    made = plan_of(key["algorithm"], key["accounting"], key["alpha"], int(data.group_sizes.max()))
    measured = train(made, data, rate=key["rate"], seed=key["seed"])
    published = isinstance(made, Published)
    return {
        "key": key,
        **measured,
        "planned_rounds": design()["common"]["planned_rounds"],
        "priced_epsilon": made.guarantee().epsilon if key["accounting"] == TIGHT else None,
        "flaws": flaws_of(key["algorithm"], REDUCTIONS[key["accounting"]]) if published else "",
        "seconds": round(time.process_time() - began, 2),
        "design": hashlib.sha256(DESIGN.read_bytes()).hexdigest(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean and half of Student's 95% interval."""
    if len(values) < 2:
        return mean(values), math.inf
    half = float(stats.t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return mean(values), half


def measures(rows: Sequence[Row], cell: Row, measure: str) -> dict[int, float]:
    """A cell's values by seed, without tuning runs; a loss that is not finite is infinite."""
    return {
        row["key"]["seed"]: math.inf if row[measure] is None else row[measure]
        for row in rows
        if _is(row["key"], cell) and row["key"]["seed"] in design()["seeds"]
    }


def difference(rows: Sequence[Row], cell: Row, other: Row, measure: str) -> str:
    """The mean paired difference ``cell`` - ``other`` with its interval."""
    ours, theirs = measures(rows, cell, measure), measures(rows, other, measure)
    pairs = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
    if not pairs or not all(map(math.isfinite, pairs)):
        return "-"
    value, half = interval(pairs)
    return f"{value:+.3f} [{value - half:+.3f}, {value + half:+.3f}]"


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Markdown: a line for each cell, then the differences that the design names."""
    algorithm, accounting = design()["analysis"]["reference"]
    reference = {"algorithm": algorithm, "accounting": accounting, "alpha": None}
    yield (
        "| algorithm | accounting | α | σ | σ / denominator | rounds | rate | seeds | accuracy | "
        "less LocalItemDP's | loss | less LocalItemDP's |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    for cell in cells():
        own = [r for r in rows if _is(r["key"], cell) and r["key"]["seed"] in design()["seeds"]]
        if not own:
            continue
        first, alpha = own[0], cell["alpha"] or "uniform"
        means = {m: mean(measures(rows, cell, m).values()) for m in ("accuracy", "loss")}
        flaws = f" ({first['flaws']})" if first["flaws"] else ""
        same = {**reference, "alpha": cell["alpha"]}
        apart = {m: difference(rows, cell, same, m) for m in means}
        yield (
            f"| {cell['algorithm']} | {cell['accounting']}{flaws} | {alpha} | "
            f"{first['noise_multiplier']:.3g} | {first['noise_per_unit']:.3g} | "
            f"{first['rounds']} | {first['key']['rate']:g} | {len(own)} | "
            f"{means['accuracy']:.3f} | {apart['accuracy']} | "
            f"{means['loss']:.3f} | {apart['loss']} |"
        )
    uniform = [cell for cell in cells() if cell["alpha"] is None]
    yield from (
        "",
        "| accounting | higher mean accuracy | next | difference |",
        "|---|---|---|---|",
    )
    for accounting in (TIGHT, *REDUCTIONS):
        # FedAvg has no accounting and LocalItemDP's rounds are not reduced: both stand in each.
        item = "paper-sqrt" if accounting in REDUCTIONS else TIGHT
        own_cells = [
            cell
            for cell in uniform
            if cell["accounting"] in ("none", accounting)
            or (cell["algorithm"], cell["accounting"]) == ("local-item-dp", item)
        ]
        own_cells = [cell for cell in own_cells if measures(rows, cell, "accuracy")]
        own_cells.sort(key=lambda c: -mean(measures(rows, c, "accuracy").values()))
        for one, two in pairwise(own_cells):
            apart = difference(rows, one, two, "accuracy")
            yield f"| {accounting} | {one['algorithm']} | {two['algorithm']} | {apart} |"
    yield from ("", "| algorithm | accounting | accuracy at α less uniform |", "|---|---|---|")
    for cell in cells():
        if cell["alpha"] is not None and measures(rows, cell, "accuracy"):
            apart = difference(rows, cell, {**cell, "alpha": None}, "accuracy")
            yield f"| {cell['algorithm']} | {cell['accounting']} | {apart} |"
    seconds = sum(row["seconds"] for row in rows)
    yield from ("", f"{len(rows)} runs, {seconds / 60:.1f} minutes of processor time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.what == "table":
        print("\n".join(table(read_rows(arguments.results))))
        return
    while (key := next_job(read_rows(arguments.results))) is not None:
        row = run(key)
        append_row(arguments.results, row)
        print(json.dumps({n: row[n] for n in ("key", "accuracy", "loss", "seconds")}), flush=True)


if __name__ == "__main__":
    main()
