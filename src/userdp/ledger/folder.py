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

import json
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from userdp import files
from userdp.codec import decode
from userdp.errors import UseError, in_short, kind_of
from userdp.ledger.journal import read_entries, read_first
from userdp.strict_json import parse

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
        return str(self._first()["run_id"])

    def read_facts(self) -> dict[str, Any]:
        """The public facts in the ledger's first line; `UseError` if there is no run here."""
        return dict(self._first().get("facts", {}))

    def _first(self) -> dict[str, Any]:
        first = read_first(self.ledger)
        if first.get("kind") != "run" or "run_id" not in first:
            raise UseError(f"there is no run at {self.path}: {self.ledger.name} is of none")
        return first

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
        entries = read_entries(self.ledger) if self.ledger.exists() else []
        return any(entry.get("kind") == "finish" for entry in entries)


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
