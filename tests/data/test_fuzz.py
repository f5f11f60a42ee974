"""Any input is stored, or counted with a reason, or refused with one clear error."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.data import fuzz
from tests.speed import fast_then_slow
from userdp.data.grouping import Grouping


@pytest.fixture(autouse=True)
def without_sync(monkeypatch):
    """A kill of the process loses nothing the system holds; syncing would only take time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def in_folder(function: Callable[[Path], str]) -> str:
    folder = Path(tempfile.mkdtemp(prefix="userdp-fuzz-"))
    try:
        return function(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sound(seed: int) -> bool:
    try:
        in_folder(lambda folder: fuzz.outcome(seed, folder))
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("seeds", fast_then_slow([range(12), range(12, 60)]), ids=str)
def test_some_inputs_are_stored_or_refused_and_leave_nothing_partial(seeds):
    seen = Counter(in_folder(lambda folder, s=s: fuzz.outcome(s, folder)) for s in seeds)
    assert set(seen) == {"stored", "refused"}


def test_a_stage_that_loses_records_is_caught_by_the_campaign(monkeypatch):
    """The twin: a grouping that drops the last record of a batch."""
    whole = Grouping.batches
    monkeypatch.setattr(
        Grouping, "batches", lambda self, **o: (b.slice(0, len(b) - 1) for b in whole(self, **o))
    )
    assert any(not sound(seed) for seed in range(60))
