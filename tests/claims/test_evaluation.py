"""A DP evaluation has a price only where the model that is evaluated has one."""

from __future__ import annotations

import math

import pytest

from tests.claims.lives import LEARNING, SHAPE, Teller, begin

pytest.importorskip("opendp", reason="the extra queries is not installed")


def released(tell: Teller, run, store) -> float:
    """ε that is printed with a released loss; infinite if the release is refused."""
    status, values = tell("evaluate", run, "--store", store.path, "--epsilon", 1, "--no-base")
    return float(values["epsilon"]) if status == 0 else math.inf


def test_the_loss_of_a_model_with_a_claim_is_released_at_its_price(store, tmp_path):
    """The honest life beside the seams: what they ask to be refused is this, and not everything."""
    assert released(Teller(), begin(store, tmp_path / "run"), store) == 1.0


def test_the_loss_of_a_model_without_privacy_is_not_released_as_dp(store, tmp_path):
    """``evaluate --epsilon 1`` on a run without privacy: "(1, 0)-DP per user" is printed.

    The noise covers one user's own loss. One training user less gives another model, which may
    change everybody's loss by the whole bound: the sum moves by n times what the noise is for, and
    the cost has no bound. It is to be refused, or printed without an ε.
    """
    tell = Teller()
    run = tmp_path / "plain"
    plain = ("--set", "plain.steps=3", "--set", "plain.batch_size=4", "--model", "new")
    tell.done("train", store.path, "--out", run, *plain, *SHAPE, *LEARNING)
    assert released(tell, run, store) == math.inf


@pytest.mark.slow
@pytest.mark.pitfall(number=38)
def test_the_loss_of_a_losing_trial_is_not_released(selection):
    """A private selection pays for its winner alone; ``evaluate --epsilon 1`` on a losing trial.

    The trial's weights were never charged: its ledger claims nothing, rightly, and a number read
    off them has no price either. Each release is sold for ε = 1 today, and shows that there was a
    trial besides. It is to be refused, or printed without an ε.
    """
    trials = (selection.out / f"trial-{number:03d}" for number in (1, 2))
    assert [released(Teller(), trial, selection.store) for trial in trials] == [math.inf] * 2
