"""What this version wrote stays readable: a store, its ledger, runs, plans, models, their claims.

The corpus was written once (`write_corpus`), by the commands; it is never written anew. A later
version may learn to say more of it, and may not say less.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.ledgers import the_first
from userdp.claims import claim
from userdp.claims.verify import verify
from userdp.claims.weights import description_of, digest_of
from userdp.data.user_store import UserStore
from userdp.plans import Plan
from userdp.plans.gradient_norms import GradientNorms

CORPUS = Path(__file__).parent / "corpus"
CLAIMS = json.loads((CORPUS / "claims.json").read_text(encoding="utf-8"))


@pytest.fixture
def corpus(tmp_path) -> Path:
    """As it was written: a checkout is a copy of a ledger, and claims would say so."""
    path = Path(shutil.copytree(CORPUS, tmp_path / "corpus"))
    the_first(path / "store")
    return path


@pytest.mark.parametrize("name", CLAIMS)
def test_a_ledger_claims_what_it_claimed(corpus, name):
    assert_same(claim(corpus / name).to_dict(), CLAIMS[name])


def assert_same(told: Any, was: Any) -> None:
    """Equal, but for the last digits of an ε, which processors differ in."""
    if isinstance(was, dict):
        assert told.keys() == was.keys()
        for key, value in was.items():
            assert_same(told[key], value)
    elif isinstance(was, list):
        for one, other in zip(told, was, strict=True):
            assert_same(one, other)
    elif isinstance(was, float):
        assert told == pytest.approx(was, rel=1e-12)
    else:
        assert told == was


def test_a_store_opens_and_reads(corpus):
    store = UserStore.open(corpus / "store")
    assert len(store.split("train").counts) == 12 - len(store.split("held-out-users").counts)


def test_a_plan_is_that_of_its_ledger_and_everything_is_verified(corpus):
    for name in CLAIMS.keys() - {"store"}:
        assert Plan.load(corpus / name / "plan.json") == claim(corpus / name).plan
    for path in ("run", "winner", "adapted", "run/model", "winner/model", "adapted/model"):
        assert not verify(corpus / path).problems


@pytest.mark.parametrize("model", ["run/model", "winner/model", "adapted/model", "adapted/adapter"])
def test_a_model_says_what_it_descends_from(corpus, model):
    described = description_of(corpus / model)
    assert described is not None
    assert described.weights == digest_of(corpus / model)
    assert described.lineage == claim((corpus / model).parent).lineage


def test_norms_and_the_plan_that_was_made_from_them_are_read(corpus):
    norms, plan = GradientNorms.load(corpus / "norms.json"), Plan.load(corpus / "proposal.json")
    assert plan == claim(corpus / "adapted").plan
    assert plan.made_for == norms.made_for
