"""A sweep's folder: what was asked for, which trials run, their scores, and the winner.

::

    DIR/               0700: how many trials there are is the operator's
      sweep.json       0600: the request, its id; fixed before the first run
      operator.jsonl   0600: a line per score
      losses/          0700: each user's loss, by trial, where trials are compared exactly
      plans/           0700: a plan file and a file of other options per trial
      logs/            0700: what each trial said
      trial-001/ …     0700: the runs
      winner/          shareable, once it is copied out: the released weights, plan.json,
                       train.toml, and a ledger whose claim is that of the tuning
"""

from __future__ import annotations

import io
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from userdp import files
from userdp.arrays import read_array
from userdp.claims.bound import bound_in, files_differ
from userdp.claims.inheritance import run_lineage
from userdp.claims.lineage import Lineage
from userdp.claims.weights import describe, digest_of
from userdp.codec import decode, encode
from userdp.errors import UseError
from userdp.ledger import RunFolder
from userdp.ledger.journal import read_entries
from userdp.ledger.run import write_winner
from userdp.strict_json import parse
from userdp.sweeping.request import Candidate, SweepRequest
from userdp.sweeping.scores import Score
from userdp.training.side_by_side import settings


@dataclass(frozen=True, kw_only=True, slots=True)
class _Begun:
    """What sweep.json holds: the request, and what a resumed sweep must share with it."""

    schema: ClassVar[str] = "userdp.sweep/2"

    sweep_id: str
    store: str
    request: SweepRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class _Scored:
    """A line of operator.jsonl."""

    kind: ClassVar[str] = "score"

    trial: int
    settings: Mapping[str, Any]
    score: Score


def _losses_in(path: Path) -> tuple[int, NDArray[np.float64]]:
    """The number of a trial, and each user's loss."""
    try:
        number = int(path.stem.removeprefix("trial-"))
    except ValueError as error:
        raise UseError(f"{path} is of no trial that has a number") from error
    return number, read_array(path, what="the losses of a trial")


def _parsed(line: bytes, path: Path) -> Any:
    try:
        return parse(line)
    except ValueError as error:
        raise UseError(f"a line of {path} is damaged: {error}") from error


_NO_TIME = 315_532_800
"""1 January 1980, which no file system refuses: when a trial ended tells which one it was."""


class SweepFolder:
    """The places in a sweep's folder, and what is kept there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sweep = path / "sweep.json"
        self.operator = path / "operator.jsonl"
        self.lock = path / ".lock"
        self.winner = path / "winner"

    @property
    def begun(self) -> bool:
        """Whether a sweep has begun here."""
        return self.sweep.exists()

    def begin(self, request: SweepRequest, store_digest: str) -> str:
        """Keep a new request; its id.

        Raises:
            UseError: there is a sweep already, or something else.
        """
        if self.sweep.exists():
            raise UseError(
                f"there is a sweep at {self.path} already",
                hint="go on with it with --resume, or choose another --out",
            )
        if any(
            path != self.lock and not path.name.startswith(files.TEMPORARY)
            for path in self.path.iterdir()
        ):
            raise UseError(
                f"{self.path} is not empty and holds no sweep: nothing of it is overwritten",
                hint="choose another --out",
            )
        files.operator_folder(self.path)  # the caller may have made it, open to others
        begun = _Begun(sweep_id=secrets.token_hex(8), store=store_digest, request=request)
        files.write_json(self.sweep, encode(begun), mode=files.OPERATOR_FILE)
        return begun.sweep_id

    def kept(self, store_digest: str) -> tuple[str, SweepRequest]:
        """The id and the request of the sweep here.

        Raises:
            UseError: there is none, or it is on another store.
        """
        if not self.sweep.exists():
            raise UseError(f"there is no sweep at {self.path} to resume", hint="leave out --resume")
        values = files.read_json(self.sweep, what="a sweep")
        begun = decode(_Begun, values, what=f"the sweep in {self.sweep}")
        files.operator_folder(self.path)
        if begun.store != store_digest:
            raise UseError(
                f"the store is not the one that the sweep at {self.path} began with: its trials "
                "could not be compared",
                hint="resume with that store, or begin a new sweep",
            )
        return begun.sweep_id, begun.request

    def run(self, number: int) -> RunFolder:
        """The run of a trial, from 1."""
        return RunFolder(self.path / f"trial-{number:03d}")

    def log(self, number: int) -> Path:
        """Where a trial's process says what went wrong."""
        folder = self.path / "logs"
        files.operator_folder(folder)
        return folder / f"trial-{number:03d}.log"

    def write_settings(self, number: int, candidate: Candidate) -> list[str]:
        """Write a trial's plan and other settings; the options that name them."""
        folder = self.path / "plans"
        return settings(folder, f"trial-{number:03d}", candidate.plan, candidate.config)

    def note(self, number: int, candidate: Candidate, score: Score) -> None:
        """Keep a score, on the disk before it is shown."""
        line = _Scored(trial=number, settings=candidate.settings, score=score)
        files.append_line(self.operator, encode(line))
        files.sync(self.operator)

    def keep_losses(self, number: int, losses: NDArray[np.float64]) -> None:
        """Keep each user's loss of a trial, exact, so that trials can be compared in pairs."""
        files.operator_folder(self._losses)
        data = io.BytesIO()
        np.save(data, losses, allow_pickle=False)
        place = self._losses / f"trial-{number:03d}.npy"
        files.write_file(place, data.getvalue(), mode=files.OPERATOR_FILE)

    def losses(self) -> dict[int, NDArray[np.float64]]:
        """What `keep_losses` kept, by trial."""
        return dict(_losses_in(path) for path in sorted(self._losses.glob("trial-*.npy")))

    @property
    def _losses(self) -> Path:
        return self.path / "losses"

    def scores(self) -> dict[int, Score]:
        """The scores kept so far, by trial; a line that a crash cut short is taken away."""
        if not self.operator.exists():
            return {}
        data = self.operator.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole != len(data):
            os.truncate(self.operator, whole)
        lines = [
            decode(_Scored, _parsed(line, self.operator), what=f"a line of {self.operator}")
            for line in data[:whole].splitlines()
        ]
        return {line.trial: line.score for line in lines}

    def release(
        self, number: int, request: SweepRequest, sweep_id: str, inherited: Lineage
    ) -> tuple[tuple[str, ...], Lineage]:
        """Make ``winner/``, whole or not at all; twice does no harm.

        Guarantee: nothing in it tells how many trials there were: no time, mode, name or id of the
        trial that won.

        Returns:
            The digests of the released weights and adapters, and what these descend from.
        """
        run, winner = self.run(number), RunFolder(self.winner)
        if not self.winner.exists():
            with files.whole_folder(self.winner) as folder:
                self._copy(run, RunFolder(folder), request, sweep_id, inherited)
        lineage = run_lineage(winner.ledger, read_entries(winner.ledger))
        released = (place for place in (winner.adapter, winner.model) if place.is_dir())
        return tuple(map(digest_of, released)), lineage

    def _copy(
        self,
        run: RunFolder,
        winner: RunFolder,
        request: SweepRequest,
        sweep_id: str,
        inherited: Lineage,
    ) -> None:
        self._copy_released(run, winner)
        shutil.copyfile(run.plan, winner.plan)
        shutil.copyfile(run.train, winner.train)
        write_winner(
            run.ledger,
            winner.ledger,
            request.tuning,
            tuning_id=sweep_id,
            basis=request.in_words,
            lineage=inherited.plain,
        )
        lineage = run_lineage(winner.ledger, read_entries(winner.ledger))
        for place in (winner.model, winner.adapter):
            if place.is_dir():
                describe(place, lineage)
        for path in (*winner.path.rglob("*"), winner.path):
            path.chmod(0o755 if path.is_dir() else files.SHAREABLE_FILE)
            os.utime(path, (_NO_TIME, _NO_TIME))

    def _copy_released(self, run: RunFolder, winner: RunFolder) -> None:
        """Copy the files that a trial released, and none that came into its folder later."""
        bound = bound_in(read_entries(run.ledger)) or {}
        if problem := next(files_differ(run, bound), None):
            raise UseError(
                f"{problem[1]}: the sweep would release another model than its trial did",
                hint="put the released file back, and resume the sweep",
            )
        for place in bound:
            target = winner.path / place
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(run.path / place, target)
