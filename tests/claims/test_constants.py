"""A constant that was read off a DP answer costs what the answer cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.claims.lives import LEARNING, SHAPE, Teller
from tests.ledgers import query
from tests.plans_room.conftest import synthetic_norms
from userdp.data.user_store import UserStore
from userdp.ledger import StoreLedger
from userdp.ledger.lines import Answer
from userdp.plans.provenance import Provenance


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
@pytest.mark.pitfall(number=36)
@pytest.mark.parametrize("declared", [(), ("--population", 1000)], ids=["ledger", "by hand"])
def test_a_model_claims_the_releases_that_its_plan_was_made_from(store, tmp_path, declared):
    """The plan leaves 4 - 1 - 0.5 = 2.5 for training, and the model claims 2.5 + 1 + 0.5 = 4.

    For clip norm, group size and sampling probability are functions of the answers. By hand, the
    population is typed in after it was asked for: 3.5 is left for training, and 5 is the sum. A
    released count is a look at the data, and the card does not call it declared.
    """
    tell = Teller()
    run = trained_on_answers(tell, store, tmp_path, *declared)
    everything, _ = tell.epsilon(store.path)
    assert 3.99 < everything < 5.01
    assert tell.of_model(run)[0] >= everything - 1e-9
    if not declared:
        tell.done("export", run, "--out", tmp_path / "export")
        card = (tmp_path / "export" / "README.md").read_text(encoding="utf-8").lower()
        about = [line for line in card.splitlines() if "population" in line]
        assert about
        assert not [line for line in about if "declared" in line]
