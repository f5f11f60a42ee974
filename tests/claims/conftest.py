"""What lives are copied from: the toy store, and a private selection on it, made once."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.sweeping.launch import Trials, swept
from tests.sweeping.test_sweep import request
from tests.training.conftest import prepared, store
from userdp.accounting.private_selection import TruncatedNegativeBinomial
from userdp.data.user_store import UserStore
from userdp.sweeping.request import SweepRequest

__all__ = ["prepared", "store"]

HOUR = 3600
LONG_AGO = 1_000_000_000
"""Seconds: the trials of `SlowTrials` ended some hours after this."""


class SlowTrials(Trials):
    """Trials that take an hour each: every file of theirs carries the time of its trial."""

    def __call__(self, *arguments, out, **options):
        ended = super().__call__(*arguments, out=out, **options)
        for path in (out, *out.rglob("*")):
            os.utime(path, (LONG_AGO + HOUR * len(self.calls),) * 2)
        return ended


@dataclass(frozen=True)
class Selection:
    """A finished private selection of two trials, all of it in one folder.

    Args:
        folder: with ``store`` and ``sweep`` in it.
        asked: the request.
        trials: how the two were trained.
    """

    folder: Path
    asked: SweepRequest
    trials: Trials

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
    opened, trials = UserStore.open(folder / "store"), SlowTrials()
    asked = request(opened, "private-selection")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(TruncatedNegativeBinomial, "draw", lambda self: 2)
        swept(opened, folder / "sweep", asked, trials=trials)
    return Selection(folder, asked, trials)


@pytest.fixture
def selection(finished_selection, tmp_path) -> Selection:
    """The same, moved with its times to a place where a test may go on with it."""
    place = tmp_path / "life"
    shutil.copytree(finished_selection.folder, place)
    return Selection(place, finished_selection.asked, finished_selection.trials)
