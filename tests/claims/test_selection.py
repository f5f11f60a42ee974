"""A private selection pays for the trials that it drew, and shows nothing but its winner."""

from __future__ import annotations

import shutil

import pytest

from tests.claims.conftest import HOUR, LONG_AGO
from tests.claims.lives import Teller
from tests.sweeping.launch import Trials, swept
from userdp.core.errors import UserdpError


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
