"""A constant that was read off a DP answer costs what the answer cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.claims.lives import LEARNING, SHAPE, Teller
from tests.ledgers import query
from tests.plans_room.conftest import synthetic_norms
from userdp.data.store import UserStore
from userdp.ledger import StoreLedger
from userdp.ledger.lines import Answer
from userdp.plans.origin import Provenance


def trained_on_answers(tell: Teller, store: UserStore, folder: Path, *declared: object) -> Path:
    """store stats at ε = 1, norms at ε = 0.5, plan at ε = 4, train; the run.

    The answers are written as `store stats --epsilon` and `plan` (measure.source=dp-release) write
    them, but are no draws: a plan is made of every one of them.
    """
    ledger = StoreLedger(store.path)
    query(ledger, "count", name="users", pure_epsilon=1.0)
    ledger.append(Answer(run_id="count", value=1000))
    query(ledger, "norms", name="median gradient norms at G = 1, 2", pure_epsilon=0.5)
    norms = synthetic_norms(most=2, source=Provenance.DP_RELEASE, ledger_line="norms")
    norms.save(folder / "norms.json")
    plan, run = folder / "plan.json", folder / "run"
    tell.done(
        "plan", store.path, "--norms", folder / "norms.json", "--epsilon", 4, "--budget", 16,
        "--steps", 3, "--delta", 1e-5, "--algorithm", "uls", "--most-noise", 1e6, "--out", plan,
        *declared,
    )  # fmt: skip
    new = ("--model", "new", *SHAPE, *LEARNING)
    tell.done("train", store.path, "--out", run, "--plan", plan, *new)
    return run


@pytest.mark.slow
@pytest.mark.parametrize("declared", [(), ("--population", 1000)], ids=["ledger", "by hand"])
def test_a_model_claims_the_releases_that_its_plan_was_made_from(store, tmp_path, declared):
    """``store stats --epsilon 1``, norms at 0.5, ``plan --epsilon 4``, ``train``.

    The plan leaves 4 - 1 - 0.5 = 2.5 for training, and the card says 2.5. But clip norm, group size
    and sampling probability are functions of the answers, so the model satisfies what all of it
    costs together: 2.5 + 1 + 0.5 = 4. (By hand: the population is typed in after it was asked for,
    3.5 is left for training, and 5 is the sum, of which 4 would be too little.) The store's own
    ledger adds it up today; the model, which depends on every line of it, may not claim less.
    """
    tell = Teller()
    run = trained_on_answers(tell, store, tmp_path, *declared)
    everything, _ = tell.epsilon(store.path)
    if not 3.99 < everything < 5.01:
        raise RuntimeError(f"the store's ledger adds up to {everything}")
    assert tell.of_model(run)[0] >= everything - 1e-9


@pytest.mark.slow
@pytest.mark.pitfall(number=36)
def test_a_released_count_is_not_called_declared(store, tmp_path):
    """The population of the plan is the answer of ``stats --epsilon 1``: a look at the data.

    The card lists it as "declared population", and lets the operator vouch that no declared number
    is a count of the data. Nothing that was looked at is declared: no line of the card that speaks
    of the population may say so.
    """
    tell = Teller()
    run = trained_on_answers(tell, store, tmp_path)
    tell.done("export", run, "--out", tmp_path / "export")
    card = (tmp_path / "export" / "README.md").read_text(encoding="utf-8").lower()
    if "population" not in card:
        raise RuntimeError("the card does not speak of the population")
    assert not [line for line in card.splitlines() if "population" in line and "declared" in line]
