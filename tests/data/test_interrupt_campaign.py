"""`kill -INT` at random moments of real `userdp prepare` processes: all or nothing, each time."""

import os
import random
import signal
import time
from collections import Counter

import pytest

from tests.data.test_resume import source_file
from tests.training.processes import start
from userdp.data.store import UserStore
from userdp.data.verify import verify_store

INTERRUPTS = 25
SEED = 17


def run(command, *, stderr, interrupt_after=None):
    """(exit status, what was said, seconds) of one call."""
    stderr.unlink(missing_ok=True)
    begin = time.monotonic()
    process = start(command, stderr=stderr)
    while not stderr.exists() and process.exitcode is None:  # the process is not ours yet
        time.sleep(0.002)
    if interrupt_after is not None:
        process.join(interrupt_after)
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGINT)
    process.join()
    said = stderr.read_text() if stderr.exists() else ""
    return process.exitcode, said, time.monotonic() - begin


@pytest.mark.slow
def test_twenty_five_interrupts_leave_all_or_nothing_and_the_same_call_ends_it(tmp_path):
    """After each interrupt the same call is made again, and ends with the store it would have."""
    source, out, stderr = source_file(tmp_path), tmp_path / "here" / "store", tmp_path / "stderr"
    out.parent.mkdir()
    command = ["prepare", str(source), "--out", str(out), "--seq-len", "8"]
    status, said, seconds = run(command, stderr=stderr)
    assert status == 0, said
    whole = UserStore.open(out).meta
    draw, seen = random.Random(SEED), Counter()
    for _ in range(INTERRUPTS):
        identity = UserStore.open(out).meta.store_id
        status, said, _ = run(
            [*command, "--overwrite"],
            stderr=stderr,
            interrupt_after=draw.uniform(0, 0.9 * seconds),
        )
        seen["done" if status == 0 else "kept" if "is kept in" in said else "nothing left"] += 1
        assert status in (0, 130), said
        assert "Traceback" not in said
        replaced = UserStore.open(out).meta.store_id != identity
        # Between the rename and the exit it may be either; what is said of it is never wrong.
        assert replaced or not (status == 0 or "had been written" in said)
        assert not (replaced and ("is as it was" in said or "no store was written" in said))
        assert status == 0 or "run it again: userdp prepare" in said
        status, said, seconds = run([*command, "--overwrite"], stderr=stderr)
        assert status == 0, said
        assert UserStore.open(out).meta.content_sha256 == whole.content_sha256
        assert UserStore.open(out).meta.totals == whole.totals
        assert [path.name for path in out.parent.iterdir()] == ["store"]
    print(dict(seen))
    assert not verify_store(out).problems
    assert INTERRUPTS - seen["done"] >= 5, "too few came before the end to tell anything"
