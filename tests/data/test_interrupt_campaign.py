"""Ctrl-C and `kill -9` at random moments of `userdp prepare`: all or nothing, each time."""

import os
import random
import signal
import time
from collections import Counter

import pytest

from tests.data.test_resume import source_file
from tests.training.processes import start
from userdp.data.integrity import verify_store
from userdp.data.user_store import UserStore

STOPS = 50
SEED = 17


def run(command, *, stderr, stop=None):
    """(exit status, what was said, seconds) of one call."""
    stderr.unlink(missing_ok=True)
    begin = time.monotonic()
    process = start(command, stderr=stderr)
    while not stderr.exists() and process.exitcode is None:  # the process is not ours yet
        time.sleep(0.002)
    if stop is not None:
        sent, after = stop
        process.join(after)
        if process.exitcode is None:
            os.kill(process.pid, sent)
    process.join()
    said = stderr.read_text() if stderr.exists() else ""
    return process.exitcode, said, time.monotonic() - begin


@pytest.mark.slow
def test_fifty_stops_leave_all_or_nothing_and_the_same_call_ends_it(tmp_path):
    """After each Ctrl-C or kill the same call is made again, and ends with the same store."""
    source, out, stderr = source_file(tmp_path), tmp_path / "here" / "store", tmp_path / "stderr"
    out.parent.mkdir()
    command = ["prepare", str(source), "--out", str(out), "--seq-len", "8"]
    status, said, seconds = run(command, stderr=stderr)
    assert status == 0, said
    whole = UserStore.open(out).meta
    draw, seen = random.Random(SEED), Counter()
    for number in range(STOPS):
        # A kill may come at any moment, Ctrl-C here once the command line is read.
        sent, least = (signal.SIGKILL, 0) if number % 2 else (signal.SIGINT, 0.3)
        after = draw.uniform(least, 0.9) * seconds
        status, said, _ = run([*command, "--overwrite"], stderr=stderr, stop=(sent, after))
        seen[status] += 1
        assert status in (0, 130, -signal.SIGKILL), said
        # Python tells of a Ctrl-C that fell into a destructor, and goes on.
        assert said.count("Traceback") == said.count("Exception ignored in"), said
        assert status != 130 or "run it again: userdp prepare" in said
        assert verify_store(out).ok
        assert UserStore.open(out).meta.content_sha256 == whole.content_sha256
        status, said, seconds = run([*command, "--overwrite"], stderr=stderr)
        assert status == 0, said
        assert UserStore.open(out).meta.content_sha256 == whole.content_sha256
        assert UserStore.open(out).meta.totals == whole.totals
        assert [path.name for path in out.parent.iterdir()] == ["store"]
    assert STOPS - seen[0] >= 10, "too few came before the end to tell anything"
