"""Makes the runs of designs: rates are chosen first, then every cell is measured; resumable.

A run trains a copy of its text's store, so that hundreds of runs do not share a ledger: each is
compared at the price of itself.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from papers.studies.design import Cell, Design
from papers.studies.runs import Job, Row, append_row, name_of, read_rows, run_one
from papers.studies.settings import Declared, Setting
from userdp.codec import encode
from userdp.training.personalization import LocalTraining

RUNS_PER_COPY = 20
"""A store's ledger inherits all of its runs: after so many the copy is made anew."""

MOST_EXAMPLES = 16
"""Of a held-out user, to evaluate on: the same for every model."""

LOCAL = LocalTraining(learning_rate=(0.001, 0.003, 0.01, 0.03), most_examples=16)
"""Local training of held-out users: four epochs of SGD (Charles et al. 2024, Appendix G.2)."""

TUNE = "tune"


@dataclass(frozen=True, kw_only=True, slots=True)
class Places:
    """Where a campaign reads and writes.

    Args:
        texts: the folder of the stores, by the texts' names.
        bases: the folder of the base models, by their names; "bundled" needs none.
        work: a folder for what is under way; one of its own for each process.
        results: the folder of the rows, a file for each design.
    """

    texts: Path
    bases: Path
    work: Path
    results: Path

    def rows(self, design: Design) -> list[Row]:
        """The rows of a design so far."""
        return read_rows(self.file(design))

    def file(self, design: Design) -> Path:
        """Where the rows of a design lie."""
        return self.results / f"{design.name}.jsonl"

    def model(self, base: str) -> str:
        """The base model as `userdp.training.config.TrainConfig` takes it."""
        return base if base == "bundled" else str(self.bases / base / "model")


def key_of(setting: Setting, rate: float, run: str) -> dict[str, Any]:
    """What tells a run from all others of its design."""
    return {"setting": encode(setting), "rate": rate, "run": run}


def best_rate(design: Design, cells: Sequence[Cell], rows: Sequence[Row]) -> float | None:
    """The rate of least loss on the middle cell of a group; None while a trial is missing."""
    if len(design.rates) == 1:
        return design.rates[0]
    by_key = {name_of(row["key"]): row for row in rows}
    trials = []
    for rate in design.rates:
        row = by_key.get(name_of(key_of(middle(cells).setting, rate, TUNE)))
        if row is None:
            return None
        trials.append((float(row["loss"]), rate))
    return min(trials)[1]


def middle(cells: Sequence[Cell]) -> Cell:
    """The cell of a group on which its rate is chosen."""
    return cells[len(cells) // 2]


def missing_runs(
    design: Design, rows: Sequence[Row], groups: Sequence[str]
) -> list[dict[str, Any]]:
    """The keys that can be run now and have no row: trials of rates, else measured runs.

    First runs of all cells come before second ones: a campaign that ends early has some of each.
    """
    have = {name_of(row["key"]) for row in rows}
    trials: list[dict[str, Any]] = []
    measured: list[tuple[int, dict[str, Any]]] = []
    for name, cells in design.groups().items():
        if name not in groups:
            continue
        rate = best_rate(design, cells, rows)
        if rate is None:
            trials += [key_of(middle(cells).setting, one, TUNE) for one in design.rates]
            continue
        for cell in cells:
            for number in range(cell.repetitions):
                measured.append((number, key_of(cell.setting, rate, str(number))))
    ordered = trials or [key for _, key in sorted(measured, key=lambda pair: pair[0])]
    return [key for key in ordered if name_of(key) not in have]


def run_design(
    design: Design,
    declared: dict[str, Declared],
    places: Places,
    *,
    until: float,
    part: tuple[int, int] = (0, 1),
    say: Callable[[str], None] = lambda text: None,
) -> bool:
    """Run what a design lacks; a row is on the disk as each run ends.

    Args:
        design: what is run.
        declared: constants by text.
        places: where.
        until: no run begins after this time, by `time.monotonic`.
        part: (number, of how many): of several processes each takes whole groups of its own.
        say: is told of every run.

    Returns:
        Whether nothing of this part is missing.
    """
    number, parts = part
    names = [name for index, name in enumerate(design.groups()) if index % parts == number]
    settings = {name_of(encode(cell.setting)): cell.setting for cell in design.cells}
    done, begin = 0, time.monotonic()
    while keys := missing_runs(design, places.rows(design), names):
        for key in keys:
            if time.monotonic() > until:
                return False
            setting = settings[name_of(key["setting"])]
            store = _store_copy(setting.text, places, fresh=done % RUNS_PER_COPY == 0)
            job = Job(
                key=key,
                plan=setting.plan(declared[setting.text]),
                config=setting.config(places.model(setting.base), key["rate"]),
                scores=_scores(setting, places) if setting.selection.scored else None,
                claimed=setting.epsilon is not None,
                local=LOCAL if setting.personalized else None,
            )
            row = run_one(job, store=store, work=places.work, most_examples=MOST_EXAMPLES)
            date = datetime.now(UTC).isoformat(timespec="seconds")
            append_row(places.file(design), {**row, "design": design.digest, "date": date})
            done += 1
            spent = (time.monotonic() - begin) / done
            say(
                f"{design.name} {key['run']} {setting.text} {setting.method}: "
                f"{row['loss']:.4f}, {spent:.0f} s a run"
            )
    return True


def _store_copy(text: str, places: Places, *, fresh: bool) -> Path:
    copy = places.work / f"store-{text}"
    if fresh:
        for other in places.work.glob("store-*"):
            shutil.rmtree(other)
    if not copy.exists():
        places.work.mkdir(parents=True, exist_ok=True)
        shutil.copytree(places.texts / text, copy)
    return copy


def _scores(setting: Setting, places: Places) -> Path:
    """Losses of the text's examples under the bundled model, computed once.

    Not under the study's base: that was trained by userdp without privacy, on docstrings, and
    userdp does not know that they are nobody's.
    """
    from userdp.data.progress import NoProgress
    from userdp.data.store import UserStore
    from userdp.training.scores import score_store

    path = places.texts / f"scores-{setting.text}.arrow"
    if not path.exists():
        store = UserStore.open(places.texts / setting.text)
        score_store(store, "bundled", path, progress=NoProgress())
    return path
