"""A tuning's folder: the request, the trials, their scores, and the winner.

::

    DIR/               0700: how many trials there are is the operator's
      tuning.json      0600: the request, its id; fixed before the first run
      scores/          0700: a file per trial, with each user's loss where they are exact
      trial-001/ …     0700: the runs
      winner/          shareable, once it is copied out: the released weights, plan.json,
                       train.toml, and a ledger whose claim is that of the tuning
"""

from __future__ import annotations

import os
import secrets
import shutil
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from userdp.claims.ledger_lineage import run_lineage
from userdp.claims.lineage import Lineage
from userdp.claims.released_files import require_released_files
from userdp.claims.weights import describe, digest_of
from userdp.core import files
from userdp.core.codec import decode, encode
from userdp.core.errors import UseError
from userdp.ledger import RunFolder, RunLedger, RunRecord
from userdp.ledger.charged_parts import Part
from userdp.ledger.lines import Open
from userdp.ledger.run_folder import DIVERGED
from userdp.sweeping.request import SweepRequest
from userdp.sweeping.trial_scores import Score

_NO_TIME = 315_532_800
"""1 January 1980, which no file system refuses: when a trial ended tells which one it was."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Begun:
    """The content of tuning.json: the request, its id, and the content hash of its store."""

    schema: ClassVar[str] = "userdp.sweep/2"

    sweep_id: str
    store: str
    request: SweepRequest


class SweepFolder:
    """The places in a tuning's folder, and the files that are kept there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sweep, self.winner = path / "tuning.json", path / "winner"

    @cached_property
    def begun(self) -> Begun:
        """The tuning that began here."""
        values = files.read_json(self.sweep, what="a tuning")
        return decode(Begun, values, what=f"the tuning in {self.sweep}")

    def begin(self, request: SweepRequest, store_digest: str) -> None:
        """Keep a new request.

        Raises:
            UseError: there is a tuning already, or something else.
        """
        there = self.path.iterdir() if self.path.exists() else ()
        if any(not one.name.startswith(".") for one in there):
            what = "a tuning" if self.sweep.exists() else "something that is no tuning"
            raise UseError(
                f"there is {what} at {self.path} already: nothing of it is overwritten",
                hint="go on with a tuning with --resume, or choose another --out",
            )
        files.operator_folder(self.path)  # the caller may have made it, open to others
        begun = Begun(sweep_id=secrets.token_hex(8), store=store_digest, request=request)
        files.write_json(self.sweep, encode(begun), mode=files.OPERATOR_FILE)

    def resume(self, request: SweepRequest | None, store_digest: str) -> None:
        """Hold the tuning that began here against a store, and a request where one is given.

        Raises:
            UseError: there is none, or it is on another store, or another request.
        """
        if not self.sweep.exists():
            raise UseError(
                f"there is no tuning at {self.path} to resume", hint="leave out --resume"
            )
        files.operator_folder(self.path)
        if self.begun.store != store_digest:
            raise UseError(
                f"the store is not the one that the tuning at {self.path} began with: its trials "
                "could not be compared",
                hint="resume with that store, or begin a new tuning",
            )
        if request not in (None, self.begun.request):
            raise UseError(
                f"this is not what the tuning at {self.path} began with: a grid or a budget that "
                "changes after a look at the first trials has no claim",
                hint="give --resume without other options, or begin a new tuning",
            )

    def run(self, number: int) -> RunFolder:
        """The run of a trial, from 1."""
        return RunFolder(self.path / f"trial-{number:03d}")

    def note(self, number: int, score: Score) -> None:
        """Keep a score, on the disk before it is shown."""
        files.operator_folder(self.path / "scores")
        place = self.path / "scores" / f"{number:03d}.json"
        files.write_json(place, encode(score), mode=files.OPERATOR_FILE)

    def scores(self) -> dict[int, Score]:
        """The scores kept so far, by trial."""
        return {
            int(path.stem): decode(Score, files.read_json(path, what="a score"), what=str(path))
            for path in sorted((self.path / "scores").glob("[0-9]*.json"))
        }

    def release(
        self, number: int, inherited: Lineage, payer: Part | None
    ) -> tuple[list[str], Lineage]:
        """Make ``winner/``, whole or not at all; twice does no harm.

        Guarantee: nothing in it tells how many trials there were: no time, mode, name or id of the
        trial that won.

        Args:
            number: of the trial that won.
            inherited: what it descends from, itself left out.
            payer: what the winner claims; None where its choice is not private.

        Returns:
            The digests of the released weights and adapters, and what these descend from.
        """
        if not self.winner.exists():
            with files.whole_folder(self.winner) as folder:
                trial = RunRecord.read(self.run(number).path)
                self._copy(trial, RunFolder(folder), inherited, payer)
        winner = RunRecord.read(self.winner)
        return [digest_of(place) for place in _released(winner.folder)], run_lineage(winner)

    def _copy(self, trial: RunRecord, winner: RunFolder, base: Lineage, payer: Part | None) -> None:
        copy_released(trial, winner)
        shutil.copyfile(trial.folder.plan, winner.plan)
        begin = replace(
            trial.begin,
            run_id=trial.run_id if payer is None else self.begun.sweep_id,
            facts={**trial.begin.facts, "plan_basis": self.begun.request.in_words},
            lineage=base.plain,
            tuning_id=None,
            payer=payer or trial.begin.payer,
        )
        # When it was opened, and how often, is a fact of the trial.
        rest = [line for line in trial.rest if not isinstance(line, Open)]
        RunLedger.create(winner.ledger, begin, *rest)
        lineage = run_lineage(RunRecord.read(winner.path))
        for place in _released(winner):
            describe(place, lineage)
        for path in (*winner.path.rglob("*"), winner.path):
            path.chmod(0o755 if path.is_dir() else files.SHAREABLE_FILE)
            os.utime(path, (_NO_TIME, _NO_TIME))


def _released(winner: RunFolder) -> list[Path]:
    """Its folders of weights."""
    return [place for place in (winner.adapter, winner.model) if place.is_dir()]


def copy_released(trial: RunRecord, winner: RunFolder) -> None:
    """Copy the files that a trial released, and none that came into its folder later.

    Raises:
        UseError: the trial's folder holds another model than it released.
    """
    require_released_files(trial)
    for place in trial.files:
        target = winner.path / place
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(trial.folder.path / place, target)
    if trial.folder.diverged:  # what is exported says so by itself, and nobody could use it
        winner.log({"kind": DIVERGED})
