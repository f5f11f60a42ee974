"""A run's folder: what lies in it, and who may read it.

::

    RUN/
      ledger.jsonl     shareable: the plan, public facts, and a line per attempted step
      plan.json        shareable: the plan; none of a run without privacy
      train.toml       shareable: all else that is needed to train again, as options of userdp train
      model/           shareable: the released weights (safetensors), config, tokenizer with
                       its chat template, and userdp.json, which says what they descend from
      adapter/         shareable: the adapters of a run that trained such; there is no model/
                       where none computes what they do over their base
      operator.jsonl   0600: losses, norms, counts, times
      audit/           0700: what `userdp audit` found
      resume.json      0600: the nonce of the opening to come, where the model of a run of
                       `make_private` was loaded from, and digests of what must not change; the
                       store's is an exact function of everybody's text, so that whoever holds it
                       could test a guess
      checkpoints/     0700
      curves/          0700, what a tracker of `transformers` writes
      .lock            held by the process that trains
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from userdp.core import files
from userdp.core.codec import decode, parse
from userdp.core.errors import UseError, in_short, kind_of
from userdp.ledger import journal
from userdp.ledger.lines import Attempt, Begin, Chosen, Finish, Line, Open, ReleaseLoss, Settle
from userdp.noise.gaussian import NoiseSampler
from userdp.plans import Plan

DIVERGED = "diverged"
"""The kind of the operator's line of a run whose released model computes NaN or infinities."""

L = TypeVar("L", bound=Line)
LEDGER = "ledger.jsonl"
"""The name of the ledger in a run's folder, and in a store's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resume:
    """What ``resume.json`` holds: what an interrupted run needs to go on.

    Args:
        run_id: of the run.
        nonces: of the opening to come; and of the one before it, that the store knows.
        charge: what pays for the steps to come; None before anything was written.
        store_path: where the store of the run's people lies.
        store_beside: the same, from the run's folder.
        state: the id of the store's state.
        digests: of what must not change.
        began: what the model is that the run begins with.
    """

    run_id: str
    nonces: tuple[str, ...] = ()
    charge: str | None = None
    store_path: str = ""
    store_beside: str = ""
    state: str = ""
    digests: Mapping[str, str] = field(default_factory=dict)
    began: Mapping[str, Any] = field(default_factory=dict)


class RunFolder:
    """The places in a run's folder, each named here and nowhere else."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = path / LEDGER
        self.plan = path / "plan.json"
        self.train = path / "train.toml"
        self.model = path / "model"
        self.adapter = path / "adapter"
        self.operator = path / "operator.jsonl"
        self.audit = path / "audit"
        self.resume = path / "resume.json"
        self.checkpoints = path / "checkpoints"
        self.curves = path / "curves"
        self.lock = path / ".lock"

    @property
    def released(self) -> Path:
        """Where the released weights lie: the model, or adapters that were released alone."""
        return self.adapter if self.adapter.is_dir() and not self.model.is_dir() else self.model

    @property
    def run_id(self) -> str:
        """The random id in the ledger's first line."""
        return RunRecord.read(self.path).run_id

    def read_train(self) -> dict[str, dict[str, Any]]:
        """The settings of ``userdp train`` that the run began with; none of `make_private`.

        Raises:
            UseError: the file is damaged.
        """
        try:
            settings = tomllib.loads(self.train.read_text(encoding="utf-8"))["train"]
            if not isinstance(settings["learning"].get("model", ""), str):
                raise ValueError("its model has no name")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UseError(f"{self.train} is damaged: {in_short(error)}") from error
        return dict(settings)

    def read_resume(self) -> Resume:
        """What an interrupted run needs to go on; `UseError` if the file is damaged."""
        kept = files.read_json(self.resume, what="an interrupted run")
        return decode(Resume, kept, what=str(self.resume))

    @property
    def stores(self) -> tuple[Path, ...] | None:
        """Where the store of a run's people may be; None where nothing here says it.

        Where it was from the run's folder, if both were moved together, comes before where it was
        at all. A sweep's winner has what a trial beside it says.
        """
        place = self
        if not self.resume.exists() and self.path.name == "winner" and self.train.exists():
            trials = sorted(self.path.resolve().parent.glob(f"trial-*/{self.resume.name}"))
            place = RunFolder(trials[0].parent) if trials else self
        if not place.resume.exists():
            return None
        try:
            kept = place.read_resume()
        except UseError:
            return ()
        return (place.path / kept.store_beside, Path(kept.store_path))

    @property
    def diverged(self) -> bool:
        """Whether the model that was released computes no finite numbers; for the operator."""
        return any(line.get("kind") == DIVERGED for line in read_lines(self.operator))

    def log(self, values: dict[str, Any]) -> None:
        """Append a line to operator.jsonl."""
        files.append_line(self.operator, values)

    @property
    def begun(self) -> bool:
        """Whether a run has begun here; its store may be charged with it."""
        return self.resume.exists() or self.ledger.exists()

    @property
    def finished(self) -> bool:
        """Whether the ledger notes the run's end."""
        record = RunRecord.find(self.path)
        return record is not None and record.finish is not None


@dataclass(frozen=True)
class RunRecord:
    """The ledger of a run, read once; all that is said of the run is computed from it.

    Args:
        folder: of the run.
        begin: the ledger's first line.
        rest: the lines after it.
        data: the bytes of all that were read.
        found: the line that the ledger lacks, by its people's store, if it lacks one; None before
            the store was asked (`userdp.claims.descent.followed`).
    """

    folder: RunFolder
    begin: Begin
    rest: tuple[Line, ...]
    data: bytes
    found: tuple[Chosen, ...] | None = None

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
        return cls.of(ledger, read) if read.lines else None

    @classmethod
    def of(cls, ledger: Path, read: journal.Read) -> RunRecord:
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
    def path(self) -> Path:
        """Of the ledger."""
        return self.folder.ledger

    @property
    def run_id(self) -> str:
        """Random; of a tuning's winner that of the tuning."""
        return self.begin.run_id

    @property
    def plan(self) -> Plan | None:
        """None of a run without privacy."""
        return self.begin.plan

    @property
    def facts(self) -> Mapping[str, Any]:
        """Public constants such as versions."""
        return self.begin.facts

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the ledger's bytes."""
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def finish(self) -> Finish | None:
        """The line that notes the run's end, if it ended as planned."""
        return next(iter(self._of(Finish)), None)

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

    @cached_property
    def steps(self) -> tuple[Attempt, ...]:
        """The charged steps of which this ledger tells."""
        return tuple(self._of(Attempt))

    @cached_property
    def openings(self) -> tuple[Open, ...]:
        """Oldest first."""
        return tuple(self._of(Open))

    @property
    def charges(self) -> list[str]:
        """The charges in the store's ledger that paid for it, each once."""
        return list(dict.fromkeys(line.run_id for line in self.openings))

    @property
    def copied(self) -> bool:
        """Whether the store's ledger was found to be another file when the run was opened."""
        return any(line.copied for line in self.openings)

    @property
    def last_charge(self) -> str:
        """The charge that pays for the steps to come."""
        return (self.charges or [self.run_id])[-1]

    @property
    def samplers(self) -> tuple[NoiseSampler, ...]:
        """What drew the noise of the attempted steps, each once."""
        named = {line.step.noise_sampler for line in self.steps}
        return tuple(sampler for sampler in NoiseSampler if sampler in named)

    @property
    def releases(self) -> tuple[ReleaseLoss, ...]:
        """Losses that were released under DP after its end, oldest first."""
        return tuple(self._of(ReleaseLoss))

    @property
    def chosen(self) -> Chosen | None:
        """What was found last of the runs that it may have been chosen among."""
        return next(reversed([*self._of(Chosen), *(self.found or ())]), None)

    @property
    def without_model(self) -> UseError:
        """The refusal of what needs a model, where the run has released none."""
        if self.settled:
            return UseError(
                f"the run at {self.folder.path} was settled before its end: it has no model to "
                "release",
                hint="train again in another --out, with a plan and a budget of its own",
            )
        return UseError(
            f"the run at {self.folder.path} has released no model yet",
            hint="go on with it: userdp train STORE --out RUN --resume; a loop of your own calls "
            "private.save()",
        )

    @property
    def settled(self) -> bool:
        """Whether it was settled before its end."""
        return bool(self._of(Settle))

    def _of(self, kind: type[L]) -> list[L]:
        return [line for line in self.rest if isinstance(line, kind)]


def train_toml(settings: Mapping[str, Mapping[str, Any]]) -> str:
    """Settings of ``userdp train`` as a file for its ``--config``; those that are None left out.

    JSON's way to write a string, a number, a truth value or a list of strings is TOML's too.
    """
    lines = []
    for section, values in settings.items():
        lines += [f"[train.{section}]"] + [
            f"{name} = {json.dumps(value, ensure_ascii=False)}"
            for name, value in values.items()
            if value is not None
        ]
    return "\n".join([*lines, ""])


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a JSON Lines file in a run's folder; none if there is no file.

    A last line that a crash cut short is left out. Exact losses may be NaN.

    Raises:
        UseError: the file cannot be read or is damaged.
    """
    values: list[dict[str, Any]] = []
    if not path.exists():
        return values
    try:
        for line in path.read_bytes().split(b"\n")[:-1]:
            values.append(dict(parse(line, finite=False)))
    except OSError as error:
        raise UseError(
            f"cannot read {path}: {error.strerror}; it may be for the run's operator only",
            hint="ask its operator, or make a public report with --public",
        ) from error
    except (ValueError, TypeError) as error:
        damaged = f"line {len(values) + 1} of {path}"
        raise UseError(f"{damaged} is damaged: {kind_of(error)}") from error
    return values
