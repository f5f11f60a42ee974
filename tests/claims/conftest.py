"""What lives are copied from: the toy store, and a private selection on it, made once."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.sweeping.launch import InProcess
from tests.sweeping.test_sweep import request, sweep
from tests.training.conftest import _one_thread, prepared, store
from userdp.accounting.repetitions import TruncatedNegativeBinomial
from userdp.data.store import UserStore
from userdp.sweeping.request import SweepRequest

__all__ = ["_one_thread", "prepared", "store"]

HOUR = 3600
LONG_AGO = 1_000_000_000
"""Seconds: the trials of `SlowTrials` ended some hours after this."""


class SlowTrials(InProcess):
    """Trials that take an hour each: every file of theirs carries the time of its trial."""

    def __call__(self, arguments, *, log, environment):
        ended = super().__call__(arguments, log=log, environment=environment)
        run = Path(arguments[arguments.index("--out") + 1])
        for path in (run, *run.rglob("*")):
            os.utime(path, (LONG_AGO + HOUR * len(self.calls),) * 2)
        return ended


@dataclass(frozen=True)
class Selection:
    """A finished private selection of two trials, all of it in one folder.

    Args:
        folder: with ``store`` and ``sweep`` in it.
        asked: the request.
        commands: of the two trials.
    """

    folder: Path
    asked: SweepRequest
    commands: tuple[tuple[str, ...], ...]

    @property
    def store(self) -> UserStore:
        return UserStore.open(self.folder / "store")

    @property
    def out(self) -> Path:
        return self.folder / "sweep"


@pytest.fixture(scope="session")
def finished_selection(prepared, tmp_path_factory) -> Selection:
    pytest.importorskip("opendp", reason="the extra queries is not installed")
    folder = tmp_path_factory.mktemp("selection")
    shutil.copytree(prepared, folder / "store")
    opened, launch = UserStore.open(folder / "store"), SlowTrials()
    asked = request(opened, "private-selection")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TruncatedNegativeBinomial, "draw", lambda self: 2)
        sweep(opened, folder / "sweep", asked, launch=launch)
    return Selection(folder, asked, tuple(map(tuple, launch.calls)))


@pytest.fixture
def selection(finished_selection, tmp_path) -> Selection:
    """The same, moved with its times to a place where a test may go on with it."""
    place = tmp_path / "life"
    shutil.copytree(finished_selection.folder, place)
    commands = tuple(
        tuple(part.replace(str(finished_selection.folder), str(place)) for part in command)
        for command in finished_selection.commands
    )
    return Selection(place, finished_selection.asked, commands)
