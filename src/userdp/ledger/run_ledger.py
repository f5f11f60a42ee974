"""The run ledger: one line per attempted step, on the disk before its update is applied.

``ledger.jsonl`` may be handed on. It therefore holds only public constants, and the clip norm where
that adapts, a function of DP releases: no times (a step's duration tells its cohort's size), no
losses, no hash of the data. Its first line says what the run descends from
(`userdp.claims.lineage`), each opening is a line with a nonce that the store's ledger knows too,
and the finishing line binds every file of the released model and the options by their digests, as
does a line of its own where the model is saved anew. Losses that were released under DP follow.

`RunRecord` reads such a ledger, and `RunLedger` writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from userdp.core.errors import FailureError, UseError
from userdp.ledger import journal
from userdp.ledger.lines import (
    Attempt,
    Begin,
    Finish,
    Line,
    Open,
    ReleaseLoss,
    Saved,
)
from userdp.ledger.run_folder import LEDGER, RunFolder
from userdp.ledger.run_lock import Counter
from userdp.plans import Plan, StepRecord

L = TypeVar("L", bound=Line)


@dataclass(frozen=True)
class RunRecord:
    """The ledger of a run, read once; all that is said of the run is computed from it.

    Args:
        folder: of the run.
        begin: the ledger's first line.
        rest: the lines after it.
        data: the bytes of all that were read.
    """

    folder: RunFolder
    begin: Begin
    rest: tuple[Line, ...]
    data: bytes

    @classmethod
    def read(cls, path: Path) -> RunRecord:
        """The record of the run in a folder, or of the ledger at ``path``.

        Raises:
            UseError: there is no run, or its ledger is damaged or was edited.
        """
        record = cls.find(path)
        if record is None:
            raise UseError(
                f"there is no run at {path}: it has no {LEDGER} with a line, and without one there "
                "is no epsilon to tell",
                hint="name the folder that `userdp train STORE --out RUN` wrote",
            )
        return record

    @classmethod
    def find(cls, path: Path) -> RunRecord | None:
        """The same; None where there is no ledger, or one without a line."""
        ledger = path / LEDGER if path.is_dir() else path
        read = journal.read(ledger)
        return cls.of_lines(ledger, read) if read.lines else None

    @classmethod
    def of_lines(cls, ledger: Path, read: journal.Read) -> RunRecord:
        """The record of lines that were read; `UseError` where they are those of a store."""
        begin, *rest = read.lines
        if not isinstance(begin, Begin):
            raise UseError(
                f"{ledger.parent} is a user store, not a run: its ledger tells of all runs on it",
                hint="name the folder that a run was trained in",
            )
        folder = RunFolder(ledger.parent)
        folder.ledger = ledger
        return cls(folder=folder, begin=begin, rest=tuple(rest), data=read.data)

    @property
    def run_id(self) -> str:
        """Random; of a tuning's winner that of the tuning."""
        return self.begin.run_id

    @property
    def plan(self) -> Plan | None:
        """None of a run without privacy."""
        return self.begin.plan

    @cached_property
    def finish(self) -> Finish | None:
        """The line that notes the run's end, if it ended as planned."""
        return next(iter(self.of(Finish)), None)

    @cached_property
    def files(self) -> Mapping[str, str]:
        """The digest of each file that is bound, by its place: the ledger's last word."""
        bound = [line.files for line in self.rest if isinstance(line, Finish | Saved)]
        return bound[-1] if bound else {}

    @cached_property
    def attempts(self) -> int:
        """Attempted steps, those included of which only the next opening tells."""
        attempts = 0
        for line in self.rest:
            if isinstance(line, Attempt):
                attempts += 1
            elif isinstance(line, Open | Finish):
                attempts = max(attempts, line.attempts)
        return attempts

    @property
    def without_model(self) -> UseError:
        """The refusal of what needs a model, where the run has released none."""
        return UseError(
            f"the run at {self.folder.path} has released no model",
            hint="resume it, unless it was settled; a loop of your own calls private.save()",
        )

    def of(self, kind: type[L]) -> list[L]:
        """The lines of a kind after the first, oldest first."""
        return [line for line in self.rest if isinstance(line, kind)]


def is_finished(folder: Path) -> bool:
    """Whether the ledger of the run in a folder, if there is one, notes the run's end."""
    record = RunRecord.find(folder)
    return record is not None and record.finish is not None


class RunLedger:
    """The writer of a run's ledger, which `create` begins and which is gone on with by its path.

    Guarantee: when `attempt` returns, the step is on the disk and charged; a step that is not
    charged was never allowed. An attempt that a crash interrupted stays charged, so the steps
    that remain after a resume are ``plan.steps - attempts`` and ε never exceeds the plan's.

    Args:
        path: of a ledger that was begun.

    Attributes:
        plan: what its first line says; None of a run without privacy.
        attempts: steps charged so far.
        last_clip_norm: of the last of them; where the clip norm adapts, a resumed run goes on
            with it (what the interrupted step would have made of it is lost). None before any.
    """

    def __init__(self, path: Path) -> None:
        record = RunRecord.read(path)
        self.path, self.plan, self.attempts = path, record.plan, record.attempts
        steps = record.of(Attempt)
        self.last_clip_norm: float | None = steps[-1].step.l2_clip_norm if steps else None
        self._counter: Counter | None = None
        self._tail: journal.Tail | None = None

    @classmethod
    def create(cls, path: Path, *first: Line) -> RunLedger:
        """Begin a ledger at ``path``, a new file, with its first lines."""
        journal.append(path, lambda _: first)
        return cls(path)

    def append(self, line: Line) -> None:
        """Write a line, on the disk when this returns; nobody else writes here meanwhile."""
        self._tail = journal.append(self.path, lambda _: [line], after=self._tail)

    def open(self, opening: Open, counter: Counter) -> None:
        """Record an opening, which charges what other folders of this run took.

        Args:
            opening: known to the store's ledger already.
            counter: of the run, held by this process.
        """
        self.append(opening)
        self.attempts = max(self.attempts, opening.attempts)
        self._counter = counter

    @property
    def remaining(self) -> int:
        """Steps that may still be attempted."""
        return 0 if self.plan is None else max(0, self.plan.steps - self.attempts)

    def attempt(self, step: StepRecord) -> int:
        """Charge one step and return its number, from 1. Call before the update is applied.

        Raises:
            FailureError: the step is not what the plan says, or all steps are spent, or the disk
                refused. The update must then not be applied.
        """
        assert self.plan is not None, "a run without privacy has no steps to charge"
        expected = StepRecord.of_plan(
            self.plan, l2_clip_norm=step.l2_clip_norm, noise_sampler=step.noise_sampler
        )
        if step != expected:
            raise FailureError(
                f"ledger and sampler disagree: step {self.attempts + 1} was {step}, the plan says "
                f"{expected}. The reported epsilon would not hold, so training stopped before this "
                "update",
                hint="plan again with what the sampler does",
            )
        if not self.remaining:
            raise FailureError(
                f"all {self.plan.steps} planned steps are spent: one more would exceed the "
                "plan's epsilon",
                hint="plan a new run with its own budget",
            )
        # Once, however often it is tried: a line may have failed behind the count.
        if self._counter is not None and self._counter.attempts <= self.attempts:
            self._counter.count()
        self.append(Attempt(step=step))
        self.attempts += 1
        self.last_clip_norm = step.l2_clip_norm
        return self.attempts

    def close(self) -> None:
        """Let another process go on; every line is on the disk already."""
        if self._counter is not None:
            self._counter.close()


def append_saved(folder: RunFolder, bound: Mapping[str, str]) -> None:
    """Bind the files of a model that was saved after the run's end, if the ledger does not yet.

    Args:
        folder: of a finished run.
        bound: the digest of each file, by its place.
    """
    known, train = RunRecord.read(folder.ledger).files, folder.train.name
    anew = {**bound, train: known[train]} if train in known else bound  # no save writes options
    if anew != known:
        journal.append(folder.ledger, lambda _: [Saved(files=anew)])


def append_release(path: Path, told: Mapping[str, Any]) -> None:
    """Add a DP release to the ledger of a run.

    Args:
        path: of the ledger.
        told: what was released, with its ``split``, ``epsilon`` and ``query_ids``.
    """
    named = {"split": told["split"], "epsilon": told["epsilon"]}
    line = ReleaseLoss(**named, query_ids=tuple(told.get("query_ids", ())), told=told)
    journal.append(path, lambda _: [line])
