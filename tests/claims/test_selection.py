"""A private selection pays for the trials that it drew, and shows nothing but its winner."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.claims.lives import Teller
from tests.sweeping.launch import Trials, request, swept
from userdp.core.errors import UserdpError

LONG_AGO, HOUR = 1_000_000_000, 3600


class SlowTrials(Trials):
    """Trials that take an hour each: every file of theirs carries the time of its trial."""

    def __call__(self, *arguments, out, **options):
        ended = super().__call__(*arguments, out=out, **options)
        for path in (out, *out.rglob("*")):
            os.utime(path, (LONG_AGO + HOUR * len(self.calls),) * 2)
        return ended


@pytest.mark.slow
@pytest.mark.pitfall(number=38)
def test_a_selection_of_two_trials_tells_neither_their_number_nor_a_loss_and_draws_none_again(
    store, tmp_path, two_trials
):
    tell, out, again = Teller(), tmp_path / "sweep", Trials()
    swept(store, out, request(store, "private-selection"), trials=SlowTrials())
    # The times of the winner's files would tell how many trials came after it.
    times = {round(path.stat().st_mtime) for path in (out / "winner", *out.glob("winner/**/*"))}
    assert not times & {LONG_AGO + HOUR, LONG_AGO + 2 * HOUR}
    # The weights of a trial were never charged: a number read off them has no price.
    for trial in (out / "trial-001", out / "trial-002"):
        assert tell("evaluate", trial, "--store", store.path, "--epsilon", 1, "--no-base")[0] != 0
        assert "trial" in tell("export", trial, "--out", tmp_path / "refused")[1]["error"]
    tell.done("export", out / "winner", "--out", tmp_path / "shared")
    # A trial that was removed would be drawn again until it is good, with fresh steps for nothing.
    before = tell.epsilon(store.path)
    shutil.rmtree(out / "trial-001")
    shutil.rmtree(out / "winner")
    (out / "scores" / "001.json").unlink()
    try:
        swept(store, out, None, resume=True, trials=again)
    except UserdpError:
        return
    assert tell.epsilon(store.path) != before or not again.calls
