"""A progress of the caller's own stops the work by an error of its own, which reaches them."""

from __future__ import annotations

import pytest

import userdp
from tests.secrets.conftest import CONFIG, PLAN
from userdp.data.progress import NoProgress


class EnoughError(Exception):
    """By which somebody's own progress stops the work."""


class Stop(NoProgress):
    """A progress that has enough at a number of steps; without one, as soon as a stage begins."""

    def __init__(self, *, at: int | None = None) -> None:
        self.most, self.error = at, EnoughError("I have seen enough")

    def stage(self, name, total, *, unit="", note=None):
        if self.most is None:
            raise self.error

    def at(self, done):
        if self.most is not None and done >= self.most:
            raise self.error


def test_a_progress_stops_training_by_an_error_of_its_own(planted, tmp_path):
    run, stop = tmp_path / "run", Stop(at=1)
    with pytest.raises(EnoughError) as stopped:
        userdp.train(planted.store, PLAN, config=CONFIG, out=run, progress=stop)
    assert stopped.value is stop.error
    resumed = userdp.train(planted.store, out=run, resume=True)
    assert resumed is not None
    assert resumed.claim.complete


def test_a_progress_stops_preparing_by_an_error_of_its_own(planted, tmp_path):
    stop = Stop()
    with pytest.raises(EnoughError) as stopped:
        userdp.prepare(
            next((planted.folder / "input").iterdir()),
            out=tmp_path / "made",
            user="author",
            text="message",
            progress=stop,
        )
    assert stopped.value is stop.error
    assert list(tmp_path.iterdir()) == [], "nothing half-written is left"
