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
      resume.json      0600: the opening to come, with its nonce; where the model of a run of
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
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from userdp.core import files
from userdp.core.codec import decode
from userdp.core.errors import UseError, in_short
from userdp.ledger.lines import Open

DIVERGED = "diverged"
"""The kind of the operator's line of a run whose released model computes NaN or infinities."""

LEDGER = "ledger.jsonl"
"""The name of the ledger in a run's folder, and in a store's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resume:
    """What ``resume.json`` holds: what an interrupted run needs to go on.

    Args:
        run_id: of the run.
        opening: the one to come, which the ledgers of the store and of the run may not know yet;
            None before anything was written.
        store_path: where the store of the run's people lies.
        store_beside: the same, from the run's folder.
        state: the id of the store's state.
        digests: of what must not change.
        began: what the model is that the run begins with.
    """

    run_id: str
    opening: Open | None = None
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

    def read_train(self) -> dict[str, dict[str, Any]]:
        """The settings of ``userdp train`` that the run began with; none of `make_private`.

        Raises:
            UseError: the file is damaged.
        """
        try:
            settings = tomllib.loads(self.train.read_text(encoding="utf-8"))["train"]
            learning = settings.get("learning") or settings["plain"]  # of a silo
            if not isinstance(learning.get("model", ""), str):
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
        """Where the store of a run's people may lie, the likeliest place first.

        Run and store may have been moved together, so that the store's place relative to the run
        comes before its absolute place. The winner of a sweep has no record of its own, and takes
        that of a trial beside it. None where nothing in the folder names a store.
        """
        place = self
        if not self.resume.exists() and self.path.name == "winner" and self.train.exists():
            trials = sorted(self.path.resolve().parent.glob(f"trial-*/{self.resume.name}"))
            place = RunFolder(trials[0].parent) if trials else self
        if not place.resume.exists():
            return None
        kept = place.read_resume()
        return (place.path / kept.store_beside, Path(kept.store_path))

    @property
    def diverged(self) -> bool:
        """Whether the model that was released computes no finite numbers; for the operator."""
        return any(line.get("kind") == DIVERGED for line in files.read_lines(self.operator))

    def log(self, values: dict[str, Any]) -> None:
        """Append a line to operator.jsonl."""
        files.append_line(self.operator, values)

    @property
    def begun(self) -> bool:
        """Whether a run has begun here; its store may be charged with it."""
        return self.resume.exists() or self.ledger.exists()


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
