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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from userdp.core import files
from userdp.core.codec import decode
from userdp.core.errors import UseError, in_short, kind_of
from userdp.core.strict_json import parse
from userdp.ledger import journal
from userdp.ledger.lines import (
    RUN,
    Attempt,
    Begin,
    Chosen,
    Finish,
    Lost,
    OpenRun,
    ReleaseLoss,
    SettleRun,
)
from userdp.noise.gaussian import NoiseSampler
from userdp.plans import Plan

DIVERGED = "diverged"
"""The kind of the operator's line of a run whose released model computes NaN or infinities."""

Line = TypeVar("Line")
_RESUME: Mapping[str, Any] = {
    "run_id": str,
    "nonces": tuple[str, ...],
    "charge": str | None,
    "digests": Mapping[str, str],
    "store_path": str,
}
"""What stands in resume.json whenever it was written."""
LEDGER = "ledger.jsonl"
"""The name of the ledger in a run's folder, and in a store's."""


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

    def read_resume(self) -> dict[str, Any]:
        """What an interrupted run needs to go on.

        Raises:
            UseError: the file is damaged.
        """
        kept = files.read_json(self.resume, what="an interrupted run")
        for name, hint in _RESUME.items():
            decode(hint, kept.get(name), what=f"{name} in {self.resume}")
        if not files.may_hold_files(kept["store_path"]):
            raise UseError(f"{self.resume} is damaged: no store can be where it says")
        return kept

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
        beside = kept.get("store_beside")
        here = [place.path / beside] if isinstance(beside, str) else []
        return (*here, Path(kept["store_path"]))

    @property
    def diverged(self) -> bool:
        """Whether the model that was released computes no finite numbers; for the operator."""
        return DIVERGED in read_lines(self.operator, lambda line: str(line["kind"]), torn=True)

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
        followed: the lines that the ledger lacks, by the store of its people; None before that was
            asked (`userdp.claims.lineage.followed`).
    """

    folder: RunFolder
    begin: Begin
    rest: tuple[Any, ...]
    data: bytes
    followed: tuple[Any, ...] | None = None

    @classmethod
    def read(cls, path: Path) -> RunRecord:
        """The record of the run in a folder, or of the ledger at ``path``.

        Raises:
            UseError: there is no run, or its ledger is damaged or was edited.
        """
        ledger = path / LEDGER if path.is_dir() else path
        if not ledger.is_file():
            raise UseError(
                f"there is no run at {path}: it has no {LEDGER}, and without one there is no "
                "epsilon to tell",
                hint="name the folder that `userdp train STORE --out RUN` wrote",
            )
        return cls.of(ledger, *journal.read(ledger, RUN))

    @classmethod
    def of(cls, ledger: Path, lines: Sequence[Any], data: bytes) -> RunRecord:
        """The record of lines that were read; `UseError` if there is none."""
        if not lines:
            raise UseError(f"the ledger {ledger} is empty: nothing was ever charged in it")
        folder = RunFolder(ledger.parent)
        folder.ledger = ledger
        return cls(folder=folder, begin=lines[0], rest=tuple(lines[1:]), data=data)

    @classmethod
    def find(cls, folder: Path) -> RunRecord | None:
        """The record of the run in a folder; None where its ledger has no line, or is not there."""
        ledger = folder / LEDGER
        lines, data = journal.read(ledger, RUN) if ledger.exists() else ([], b"")
        return cls.of(ledger, lines, data) if lines else None

    @property
    def as_written(self) -> RunRecord:
        """The same, by the lines of its ledger alone."""
        return replace(self, followed=())

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
        """Attempted steps, those of lost folders included."""
        return len(self._of(Attempt)) + sum(line.attempts for line in self._of(Lost))

    @cached_property
    def steps(self) -> tuple[Attempt, ...]:
        """The charged steps of which this ledger tells."""
        return tuple(self._of(Attempt))

    @property
    def nonces(self) -> list[str]:
        """Of its openings, oldest first."""
        return [line.nonce for line in self._of(OpenRun)]

    @property
    def charges(self) -> list[str]:
        """The charges in the store's ledger that paid for it, each once."""
        return list(dict.fromkeys(line.charge for line in self._of(OpenRun)))

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
        return next(reversed(self._of(Chosen)), None)

    @property
    def without_model(self) -> UseError:
        """The refusal of what needs a model, where the run has released none."""
        if self.has(SettleRun):
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

    def has(self, kind: type) -> bool:
        """Whether there is a line of a kind."""
        return bool(self._of(kind))

    def _of(self, kind: type[Line]) -> list[Line]:
        lines = (*self.rest, *(self.followed or ()))
        return [line for line in lines if isinstance(line, kind)]


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


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("a line is no object")
    return value


def read_lines(
    path: Path, read: Callable[[dict[str, Any]], Line | None], *, torn: bool = False
) -> list[Line]:
    """What ``read`` makes of the lines of a file in a run's folder; none if there is no file.

    Args:
        path: JSON Lines; exact losses may be NaN.
        read: of a line's object; None leaves the line out.
        torn: leave out a last line that a crash cut short.

    Raises:
        UseError: the file cannot be read or is damaged: a line is none, or ``read`` refuses it.
    """
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UseError(
            f"cannot read {path}: {error.strerror}; it may be for the run's operator only",
            hint="ask its operator, or make a public report with --public",
        ) from error
    values: list[Line] = []
    for number, line in enumerate(lines, start=1):
        try:
            value = read(_object(parse(line, finite=False)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            if torn and number == len(lines):
                break
            raise UseError(f"line {number} of {path} is damaged: {kind_of(error)}") from error
        if value is not None:
            values.append(value)
    return values
