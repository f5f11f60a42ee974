"""Marathe et al. 2023 with both reductions of rounds, at equal batches and local steps.

    python -m benchmarks.marathe run [--design marathe-cap]      # goes on where it stopped
    python -m benchmarks.marathe table [--design marathe-cap]

A design is a file in ``papers/designs``, committed before the first run of it; each
row of ``docs/results/papers/NAME.jsonl`` carries its digest. Runs are simulated in memory
(`papers.marathe.simulation`): no ε is claimed for a row.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise, product
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from scipy import stats

from papers.marathe.federations import (
    LOCAL_ITEM,
    NONE,
    PAPER_SQRT,
    REDUCTIONS,
    TIGHT,
    Size,
    federation,
    is_capped,
    plan_of,
)
from papers.marathe.published import Published, flaws_of
from papers.marathe.simulation import train
from papers.studies.intervals import Estimate, holm
from papers.studies.runs import Row, append_row, name_of, read_rows
from userdp.plans import Plan

FOLDER = Path("docs/results/papers")
_CELL = ("algorithm", "accounting", "alpha", "cap")


@dataclass(frozen=True)
class Study:
    """A design and its rows.

    Args:
        name: ``marathe`` or ``marathe-cap``.
        folder: of the rows, and of ``designs``.
    """

    name: str
    folder: Path = FOLDER

    @property
    def results(self) -> Path:
        """Where the rows lie."""
        return self.folder / f"{self.name}.jsonl"

    @cached_property
    def file(self) -> bytes:
        """The design's bytes."""
        return (Path("papers/designs") / f"{self.name}.toml").read_bytes()

    @cached_property
    def design(self) -> dict[str, Any]:
        """The design's values."""
        return tomllib.loads(self.file.decode("utf-8"))

    @cached_property
    def size(self) -> Size:
        """What all cells share."""
        # The first study, marathe.toml, declared all items of a silo.
        common = {"declared_after_cap": False, **self.design["common"]}
        return Size(**common, tuning_seed=self.design["tuning_seed"])

    def cells(self) -> Iterator[Row]:
        """The cells, as the design lists them; one has a cap of its own if the design says so."""
        for group in self.design["cells"]:
            names = [name for name in ("cap", "alpha", "algorithm", "accounting") if name in group]
            for values in product(*(group[name] for name in names)):
                cell = {"alpha": None, **dict(zip(names, values, strict=True))}
                yield {**cell, "alpha": None if cell["alpha"] == "uniform" else cell["alpha"]}

    def tuned_on(self, cell: Row) -> Row:
        """The cell whose runs choose the rate of ``cell``: at the uniform spread, or its own."""
        return cell if "cap" in cell else {**cell, "alpha": None}

    def next_job(self, rows: Sequence[Row]) -> Row | None:
        """The key of the next run: tuning first, then the seeds' uniform cells, then those of α."""
        have = {name_of(row["key"]) for row in rows}
        jobs: list[Row] = [
            {**cell, "rate": rate, "seed": self.design["tuning_seed"]}
            for cell in self.cells()
            if self.tuned_on(cell) == cell
            for rate in self.design["tuning"]["rates"]
        ]
        if all(name_of(job) in have for job in jobs):
            jobs = [
                {**cell, "rate": self.tuned(rows, cell), "seed": seed}
                for uniform in (True, False)
                for seed in self.design["seeds"]
                for cell in self.cells()
                if (cell["alpha"] is None) == uniform
            ]
        return next((job for job in jobs if name_of(job) not in have), None)

    def tuned(self, rows: Sequence[Row], cell: Row) -> float:
        """The rate of the least held-out loss on the tuning seed."""
        tried = [
            row
            for row in rows
            if row["key"]["seed"] == self.design["tuning_seed"]
            and is_cell(row["key"], self.tuned_on(cell))
        ]
        best = min(tried, key=lambda row: math.inf if row["loss"] is None else row["loss"])
        return float(best["key"]["rate"])

    def run(self, key: Row) -> Row:
        """One row of the results."""
        began = time.process_time()
        size = replace(self.size, cap=key["cap"]) if "cap" in key else self.size
        data = federation(size, key["seed"], key["alpha"])
        algorithm, accounting = key["algorithm"], key["accounting"]
        made = plan_of(size, algorithm, accounting, key["alpha"], int(data.group_sizes.max()))
        plan = made.plan if isinstance(made, Published) else made
        local = plan.local if isinstance(plan.local, Plan) else None
        found = train(made, data, batch=size.batch, rate=key["rate"], seed=key["seed"])
        trained = data.capped(size.cap) if is_capped(algorithm, accounting) and local else data
        return {
            "key": key,
            "accuracy": found.accuracy,
            "loss": found.loss if math.isfinite(found.loss) else None,
            "rounds": plan.rounds,
            "noise_multiplier": local.noise.multiplier if local else 0.0,
            "noise_per_unit": local.noise.multiplier / local.denominator if local else 0.0,
            "items": len(trained.rows),
            "held_out_items": len(data.held_out),
            "planned_rounds": size.planned_rounds,
            "priced_epsilon": plan.guarantee().epsilon if accounting == TIGHT else None,
            "flaws": flaws_of(algorithm, REDUCTIONS[accounting])
            if accounting in REDUCTIONS
            else "",
            "seconds": round(time.process_time() - began, 2),
            "design": hashlib.sha256(self.file).hexdigest(),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
        }

    def measures(self, rows: Sequence[Row], cell: Row, measure: str) -> dict[int, float]:
        """A cell's values by seed, without tuning runs; a loss that is not finite is infinite."""
        return {
            row["key"]["seed"]: math.inf if row[measure] is None else row[measure]
            for row in rows
            if is_cell(row["key"], cell) and row["key"]["seed"] in self.design["seeds"]
        }

    def difference(
        self, rows: Sequence[Row], cell: Row, other: Row, measure: str = "accuracy"
    ) -> Estimate | None:
        """The mean paired difference ``cell`` - ``other``; None where it cannot be told."""
        ours, theirs = self.measures(rows, cell, measure), self.measures(rows, other, measure)
        pairs = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
        if len(pairs) < 2 or not all(map(math.isfinite, pairs)):
            return None
        return paired(pairs)


def is_cell(key: Mapping[str, Any], cell: Row) -> bool:
    """Whether a row's key belongs to a cell."""
    return all(key.get(name) == cell.get(name) for name in _CELL)


def paired(differences: Sequence[float]) -> Estimate:
    """Student's 95% interval of the mean of paired differences, and its two-sided test."""
    if len(set(differences)) == 1:  # of a cell with itself
        return Estimate(value=differences[0], low=differences[0], high=differences[0])
    told = stats.ttest_1samp(differences, 0.0)
    low, high = told.confidence_interval(0.95)
    return Estimate(value=mean(differences), low=float(low), high=float(high), p=float(told.pvalue))


def shown(estimate: Estimate | None) -> str:
    """With three digits; a dash where nothing can be told."""
    if estimate is None:
        return "-"
    return f"{estimate.value:+.3f} [{estimate.low:+.3f}, {estimate.high:+.3f}]"


def lines_of_cells(study: Study, rows: Sequence[Row]) -> Iterator[str]:
    """A line for each cell, beside the design's reference cell if it has one."""
    reference = study.design["analysis"].get("reference")
    beside = " less LocalItemDP's |" if reference else ""
    yield (
        "| algorithm | accounting | α | cap | σ | σ / denominator | rounds | rate | seeds | "
        f"accuracy |{beside} loss |{beside}"
    )
    yield "|---" * (14 if reference else 12) + "|"
    for cell in study.cells():
        own = [
            row
            for row in rows
            if is_cell(row["key"], cell) and row["key"]["seed"] in study.design["seeds"]
        ]
        if not own:
            continue
        first = own[0]
        capped = is_capped(cell["algorithm"], cell["accounting"])
        line = (
            f"| {cell['algorithm']} | {cell['accounting']}"
            f"{' (' + first['flaws'] + ')' if first['flaws'] else ''} | "
            f"{cell['alpha'] or 'uniform'} | "
            f"{cell.get('cap', study.size.cap) if capped else 'none'} | "
            f"{first['noise_multiplier']:.3g} | {first['noise_per_unit']:.3g} | "
            f"{first['rounds']} | {first['key']['rate']:g} | {len(own)} |"
        )
        for measure in ("accuracy", "loss"):
            line += f" {mean(study.measures(rows, cell, measure).values()):.3f} |"
            if reference:
                algorithm, accounting = reference
                same = {"algorithm": algorithm, "accounting": accounting, "alpha": cell["alpha"]}
                line += f" {shown(study.difference(rows, cell, same, measure))} |"
        yield line


def contrasts(
    study: Study, rows: Sequence[Row]
) -> Iterator[tuple[str, list[tuple[str, Estimate]]]]:
    """Families of differences of accuracy: (title, [(what, difference)]); Holm's rule over each."""
    cells = list(study.cells())

    def family(pairs: Sequence[tuple[str, Row, Row]]) -> list[tuple[str, Estimate]]:
        told = [(what, study.difference(rows, one, other)) for what, one, other in pairs]
        return [(what, estimate) for what, estimate in told if estimate is not None]

    def name(cell: Row) -> str:
        cap = f", cap {cell['cap']}" if "cap" in cell else ""
        accounting = "" if cell["accounting"] == NONE else f", {cell['accounting']}"
        return f"{cell['algorithm']}{accounting}{cap}"

    uniform = [cell for cell in cells if cell["alpha"] is None]
    if study.design["analysis"].get("reference"):
        for accounting in (TIGHT, *REDUCTIONS):
            # FedAvg has no accounting and LocalItemDP's rounds are not reduced: both stand in each.
            item = PAPER_SQRT if accounting in REDUCTIONS else TIGHT
            own = [
                cell
                for cell in uniform
                if cell["accounting"] == NONE
                or cell["accounting"] == (item if cell["algorithm"] == LOCAL_ITEM else accounting)
            ]
            own.sort(key=lambda cell: -mean(study.measures(rows, cell, "accuracy").values()))
            yield (
                f"order of mean accuracy, {accounting}",
                family(
                    [(f"{a['algorithm']} less {b['algorithm']}", a, b) for a, b in pairwise(own)]
                ),
            )
    yield (
        "at α less the uniform spread",
        family(
            [
                (f"{name(cell)}, α = {cell['alpha']:g}", cell, {**cell, "alpha": None})
                for cell in cells
                if cell["alpha"] is not None
            ]
        ),
    )
    caps = sorted({cell["cap"] for cell in cells if "cap" in cell})
    yield (
        "a larger cap",
        family(
            [
                (
                    f"{cell['algorithm']}, α = {cell['alpha'] or 'uniform'}: cap {cell['cap']} "
                    f"less cap {caps[0]}",
                    cell,
                    {**cell, "cap": caps[0]},
                )
                for cell in cells
                if caps and cell["cap"] != caps[0]
            ]
        ),
    )


def table(study: Study, rows: Sequence[Row]) -> Iterator[str]:
    """Markdown: a line for each cell, then the differences that the design names."""
    yield from lines_of_cells(study, rows)
    for title, family in contrasts(study, rows):
        if not family:
            continue
        yield from (
            "",
            f"| {title} | difference of accuracy | told apart (Holm) |",
            "|---|---|---|",
        )
        told = holm([estimate for _, estimate in family])
        for (what, estimate), apart in zip(family, told, strict=True):
            yield f"| {what} | {shown(estimate)} | {'yes' if apart else 'no'} |"
    seconds = sum(row["seconds"] for row in rows)
    yield from ("", f"{len(rows)} runs, {seconds / 60:.1f} minutes of processor time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--design", choices=("marathe", "marathe-cap"), default="marathe")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    study = Study(arguments.design)
    if arguments.what == "table":
        print("\n".join(table(study, read_rows(study.results))))
        return
    while (key := study.next_job(read_rows(study.results))) is not None:
        row = study.run(key)
        append_row(study.results, row)
        print(json.dumps({n: row[n] for n in ("key", "accuracy", "loss", "seconds")}), flush=True)


if __name__ == "__main__":
    main()
