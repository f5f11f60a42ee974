"""What a second attack on lineages found: whose model, and whose base, a price is of."""

from __future__ import annotations

import math
import shutil
from dataclasses import replace

import pytest

from tests.claims.lives import LEARNING, PLAIN, PLAN, SHAPE, Teller, begin, train_from
from tests.sweeping.launch import Trials, request, swept
from tests.training.toy import CONFIG, toy_store
from userdp.claims import claim
from userdp.core.errors import UseError
from userdp.ledger import StoreLedger

PRICE = PLAN.guarantee().epsilon


def plain(tell, store, out):
    """A model without privacy of a store's people."""
    tell.done("train", store.path, "--out", out, *PLAIN, *SHAPE)
    return out / "model"


@pytest.mark.slow
def test_invariant_13_on_top_of_a_model_without_privacy_nothing_is_claimed_of_anybody(
    store, tmp_path
):
    """Whose text the first model saw is known for the next store's people too."""
    tell, second = Teller(), tmp_path / "second"
    train_from(tell, toy_store(tmp_path / "T").path, second, plain(tell, store, tmp_path / "first"))
    assert tell.of_model(second)[0] == math.inf
    budget = ("--budget", 8, "--steps", 2, "--epsilon", 4, "--population", 20, "--delta", 1e-3)
    measured = [
        word
        for one in ("source=dp-release", "epsilon=0.5", "users=5")
        for word in ("--set", f"measure.{one}")
    ]
    norms = ("--norms-out", tmp_path / "norms")
    before = StoreLedger(store.path).history().charges
    for asked in (
        ("plan", store.path, "--model", second / "model", *budget, *measured, *norms),
        ("evaluate", second, "--store", store.path, "--epsilon", 0.5, "--no-base"),
    ):
        status, told = tell(*asked)
        assert status == 2
        assert "nothing is claimed" in told["error"]
    assert StoreLedger(store.path).history().charges == before, "no answer was paid for"


@pytest.mark.slow
@pytest.mark.parametrize("what", ["model", "base"])
def test_a_loss_is_released_only_of_the_models_that_the_claim_is_of(store, tmp_path, what):
    tell, base = Teller(), tmp_path / "current"
    shutil.copytree(begin(store, tmp_path / "old") / "model", base)
    _, run = train_from(tell, store.path, tmp_path / "run", base)
    evaluate = ("evaluate", run, "--store", store.path, "--epsilon", 0.5)
    tell.done(*evaluate)
    before = StoreLedger(store.path).history().charges.keys()
    swapped = run / "model" if what == "model" else base
    other = plain(tell, store, tmp_path / "other")
    shutil.rmtree(swapped)
    shutil.copytree(other, swapped)
    assert tell(*evaluate)[0] == 2
    new = StoreLedger(store.path).history().charges.keys() - before
    assert len(new) == 1, "the other run's alone: nothing was asked"
    if what == "base":
        tell.done(*evaluate, "--no-base")


def tuned(store, folder, *, base="new", **options):
    """A sweep in a folder, by composition."""
    asked = request(store, "composition", plan=PLAN, config=replace(CONFIG, model=base))
    swept(store, folder / "sweep", asked, **options)
    return asked


@pytest.mark.slow
def test_no_sweep_begins_from_a_model_of_which_nothing_is_claimed(store, tmp_path):
    with pytest.raises(UseError, match="nothing is claimed of the model"):
        tuned(store, tmp_path, base=str(plain(Teller(), store, tmp_path / "plain")))
    assert len(StoreLedger(store.path).history().charges) == 1, (
        "the model's own: no trial was paid for"
    )


@pytest.mark.slow
def test_a_trial_that_was_thrown_away_stays_in_the_price_of_the_winner(store, tmp_path):
    """Two trials are planned and three are trained: the best of three was chosen."""
    with pytest.raises(KeyboardInterrupt):
        tuned(store, tmp_path, trials=Trials(crash_before=2))
    shutil.rmtree(tmp_path / "sweep" / "trial-001")
    shutil.rmtree(tmp_path / "sweep" / "scores")
    asked = tuned(store, tmp_path, resume=True)
    won, trial = claim(tmp_path / "sweep" / "winner"), asked.candidates[0].plan
    whole = asked.tuning.guarantee().epsilon + trial.guarantee().epsilon
    assert won.guarantee.epsilon == pytest.approx(whole)


@pytest.mark.slow
def test_invariant_13_who_trains_on_text_that_a_model_wrote_claims_what_that_model_did(
    store, tmp_path
):
    tell, made = Teller(), tmp_path / "made.jsonl"
    run = begin(store, tmp_path / "run")
    tell.done("generate", run, "--records", 40, "--max-tokens", 24, "--out", made)
    names = ("--user", "generated_by", "--held-out-users", 0, "--seq-len", 8)
    tell.done("prepare", made, *names, "--out", tmp_path / "made")
    PLAN.save(tmp_path / "plan.json")
    options = ("--plan", tmp_path / "plan.json", "--model", "new", *SHAPE, *LEARNING)
    tell.done("train", tmp_path / "made", "--out", tmp_path / "again", *options)
    assert tell.epsilon(tmp_path / "again")[0] == pytest.approx(2 * PRICE)
