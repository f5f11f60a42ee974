"""`kill -INT` at random moments of real `userdp train` processes: no computed step is lost."""

import math
import os
import random
import re
import signal
import time
from collections import Counter

import pytest

from tests.plans import uls_plan
from tests.training.processes import start
from tests.training.test_crash import TRAIN, released_step
from tests.training.toy import attempts
from userdp.claims import claim

INTERRUPTS = 25
STEPS = 250
SEED = 17


def charged_in(run):
    return attempts(run) if (run / "ledger.jsonl").exists() else 0


def wait_for(process, run, count, *, seconds=math.inf) -> None:
    """Until so many steps are charged, counted without reading them: it must be quick."""
    ledger, until = run / "ledger.jsonl", time.monotonic() + seconds
    while process.exitcode is None and time.monotonic() < until:
        if ledger.exists() and ledger.read_bytes().count(b'"kind":"attempt"') >= count:
            return
        time.sleep(0.002)


@pytest.mark.slow
def test_invariant_7_twenty_five_interrupts_lose_no_step_and_each_can_be_resumed(store, tmp_path):
    """One run, which is interrupted and resumed until all moments are used up.

    No checkpoint is ever due, so that those in the folder are the interrupts' own.
    """
    run, said = tmp_path / "run", tmp_path / "stderr"
    command = ["train", str(store.path), "--out", str(run), "--steps", str(STEPS), *TRAIN]
    for never in ("checkpoint_every", "checkpoint_seconds"):
        command += ["--set", f"learning.{never}=100000"]
    draw, seen = random.Random(SEED), Counter()
    for _ in range(INTERRUPTS):
        before, begun = charged_in(run), (run / "resume.json").exists()
        said.unlink(missing_ok=True)
        process = start([*command, *(["--resume"] if begun else [])], stderr=said)
        steps, early = draw.randint(1, 6), draw.random() < 0.3
        while not said.exists() and process.exitcode is None:  # the process is not ours yet
            time.sleep(0.002)
        if early:  # while the model is built, the run is opened, the checkpoint is read
            # A fast machine has begun by then: it could make all steps in what is left of the time.
            wait_for(process, run, before + steps, seconds=draw.uniform(0, 1.5))
        else:
            wait_for(process, run, before + steps)
            time.sleep(draw.uniform(0, 0.03))
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGINT)
        process.join()
        words, charged = said.read_text() if said.exists() else "", charged_in(run)
        seen[where(words)] += 1
        assert process.exitcode == 130, words
        assert "Traceback" not in words
        assert before <= charged < STEPS
        assert "interrupted at once" not in words
        assert released_step(run) == charged, f"{charged - released_step(run)} steps lost: {words}"
        if found := re.search(r"after step (\d+) of", words):
            assert int(found[1]) == charged
        assert ("--resume" in words) == (run / "resume.json").exists()
    process = start([*command, "--resume"], stderr=said)
    process.join()
    assert process.exitcode == 0, said.read_text()
    print(dict(seen))
    assert seen["after step"] >= INTERRUPTS / 2
    assert charged_in(run) == STEPS
    found = claim(run)
    assert found.complete
    plan = uls_plan(steps=STEPS, cohort_size=4, group_size=2, l2_clip_norm=1.0)
    assert found.guarantee == plan.guarantee() == claim(store.path).guarantee


def where(words: str) -> str:
    """The kind of place that the last line tells."""
    for told in ("after step", "before step", "before the next step", "before anything"):
        if f"interrupted {told}" in words:
            return told
    return "elsewhere"
