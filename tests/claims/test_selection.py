"""A private selection pays for the trials that it drew, and shows nothing but its winner."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.claims.conftest import HOUR, LONG_AGO
from tests.claims.lives import Teller
from tests.sweeping.launch import InProcess
from tests.sweeping.test_sweep import sweep
from userdp.accounting.repetitions import TruncatedNegativeBinomial
from userdp.errors import UserdpError


def by_hand(tell: Teller, arguments: Sequence[str], run: Path) -> bool:
    """Whether a trial's own command, with another folder, trains one model more for nothing."""
    changed = list(arguments)
    changed[changed.index("--out") + 1] = str(run)
    store = Path(arguments[1])
    before = tell.epsilon(store)
    status, _ = tell(*changed)
    return status == 0 and tell.epsilon(store) == before


@pytest.mark.slow
def test_no_trial_runs_outside_of_the_slots_that_were_drawn(selection, tmp_path):
    """The command of a trial is repeated by hand after the sweep, with an --out of its own.

    The price of the selection, ε = 8, is that of a random number of trials of which two were drawn
    and one is shown. A third model of the same people, which anybody may look at, was never part of
    it. It is to be refused, or charged.
    """
    assert not by_hand(Teller(), selection.commands[0], tmp_path / "one-more")


@pytest.mark.slow
def test_no_more_trials_run_than_the_selection_drew(
    store, finished_selection, tmp_path, monkeypatch
):
    """Two trials are drawn, the sweep is killed before the first, and three are trained by hand.

    Whoever looks at three and takes the best pays for a number of trials that the data chose. At
    most two may be free.
    """
    monkeypatch.setattr(TruncatedNegativeBinomial, "draw", lambda self: 2)
    launch = InProcess(crash_before=1)
    with pytest.raises(KeyboardInterrupt):
        sweep(store, tmp_path / "sweep", finished_selection.asked, launch=launch)
    free = [by_hand(Teller(), launch.calls[0], tmp_path / f"{n}") for n in range(3)]
    assert sum(free) <= 2


@pytest.mark.slow
def test_the_slot_of_a_trial_is_used_once(selection):
    """A trial is looked at, its folder and its score are removed, and the sweep is resumed.

    It is drawn again as often as one likes, until it is good: each time fresh noisy steps, none of
    them charged. The second time it is to be refused, or charged.
    """
    out, tell = selection.out, Teller()
    before = tell.epsilon(selection.store.path)
    shutil.rmtree(out / "trial-001")
    shutil.rmtree(out / "winner")
    lines = (out / "operator.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line).get("trial") != 1]
    (out / "operator.jsonl").write_text("".join(kept))
    again = InProcess()
    try:
        sweep(selection.store, out, None, resume=True, launch=again)
    except UserdpError:
        return
    assert tell.epsilon(selection.store.path) != before or not again.calls


@pytest.mark.slow
@pytest.mark.pitfall(number=38)
def test_the_winners_folder_does_not_tell_which_trial_it_was(selection):
    """Two trials of an hour each; the winner's files are copied with their times.

    The released folder shows when its trial ended and when the sweep did: the hours between are
    those of the trials that came after it, so that they tell the number of trials (its position,
    where jobs run one after another), which the price of a private selection counts as secret.
    """
    winner = selection.out / "winner"
    times = {round(path.stat().st_mtime) for path in (winner, *winner.rglob("*"))}
    assert not times & {LONG_AGO + HOUR, LONG_AGO + 2 * HOUR}
