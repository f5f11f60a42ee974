"""A private selection pays for the trials that it drew, and shows nothing but its winner."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.claims.conftest import HOUR, LONG_AGO
from tests.claims.lives import Teller
from tests.sweeping.launch import Trials, swept
from userdp.accounting.private_selection import TruncatedNegativeBinomial
from userdp.claims import claim
from userdp.core.errors import UserdpError
from userdp.data.user_store import UserStore
from userdp.training.loop import train


def by_hand(store: UserStore, trial: tuple[tuple[Any, ...], dict[str, Any]], run: Path) -> bool:
    """Whether a trial, trained again in another folder, is one model more for nothing."""
    (_, *constants), options = trial
    before = claim(store.path).guarantee.epsilon
    try:
        train(store, *constants, out=run, **{**options, "resume": False, "progress": None})
    except UserdpError:
        return False
    return claim(store.path).guarantee.epsilon == before


@pytest.mark.slow
def test_no_trial_runs_outside_of_the_slots_that_were_drawn(selection, tmp_path):
    """A trial is repeated by hand after the sweep, in a folder of its own.

    The price of the selection, ε = 8, is that of a random number of trials of which two were drawn
    and one is shown. A third model of the same people, which anybody may look at, was never part of
    it. It is to be refused, or charged.
    """
    assert not by_hand(selection.store, selection.trials.given[0], tmp_path / "one-more")


@pytest.mark.slow
def test_no_more_trials_run_than_the_selection_drew(
    store, finished_selection, tmp_path, monkeypatch
):
    """Two trials are drawn, the sweep is killed before the first, and three are trained by hand.

    Whoever looks at three and takes the best pays for a number of trials that the data chose. At
    most two may be free.
    """
    monkeypatch.setattr(TruncatedNegativeBinomial, "draw", lambda self: 2)
    trials = Trials(crash_before=1)
    with pytest.raises(KeyboardInterrupt):
        swept(store, tmp_path / "sweep", finished_selection.asked, trials=trials)
    free = [by_hand(store, trials.given[0], tmp_path / f"{n}") for n in range(3)]
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
    (out / "scores" / "001.json").unlink()
    again = Trials()
    try:
        swept(selection.store, out, None, resume=True, trials=again)
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


@pytest.mark.slow
@pytest.mark.pitfall(number=38)
def test_the_loss_of_a_losing_trial_is_not_released(selection):
    """The trial's weights were never charged, so that a number read off them has no price."""
    for number in (1, 2):
        trial = selection.out / f"trial-{number:03d}"
        options = ("--store", selection.store.path, "--epsilon", 1, "--no-base")
        assert Teller()("evaluate", trial, *options)[0] != 0
