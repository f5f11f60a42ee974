"""Any input is stored, or counted with a reason, or refused with one clear error.

The campaign (``make fuzz``) runs 10,000 inputs, some of them kills, a record of 100 MB and a user
of a million records. It writes each result as it comes to ``runs/fuzz/data.jsonl`` and goes on from
there when started again; ``USERDP_FUZZ_INPUTS`` (without it there is no campaign) and
``USERDP_FUZZ_RESULTS`` say how many and where.
"""

from __future__ import annotations

import json
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

INPUTS = int(os.environ.get("USERDP_FUZZ_INPUTS", "10000"))
RESULTS = Path(os.environ.get("USERDP_FUZZ_RESULTS", "runs/fuzz/data.jsonl"))
KILL_EVERY = 250


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


def one(seed: int) -> str:
    if seed % KILL_EVERY == KILL_EVERY - 1:
        return "killed: " + in_folder(lambda folder: fuzz.kill(seed, folder))
    return in_folder(lambda folder: fuzz.outcome(seed, folder))


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


@pytest.mark.slow
@pytest.mark.skipif("USERDP_FUZZ_INPUTS" not in os.environ, reason="a campaign: `make fuzz`")
def test_campaign():
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    done = {entry["seed"]: entry["outcome"] for entry in map(json.loads, lines)}
    large = {-1: fuzz.huge_record, -2: fuzz.million_records}
    with RESULTS.open("a") as file:
        for seed in [*range(INPUTS), *large]:
            if seed in done:
                continue
            try:
                outcome = in_folder(large[seed]) if seed in large else one(seed)
            except Exception as error:  # the campaign goes on; the test fails at its end
                outcome = f"broken: {type(error).__name__}: {str(error)[:300]}"
            done[seed] = outcome
            file.write(json.dumps({"seed": seed, "outcome": outcome}) + "\n")
            file.flush()
    broken = {seed: outcome for seed, outcome in done.items() if outcome.startswith("broken")}
    print(Counter(outcome.split(":")[0] for outcome in done.values()))
    assert not broken
