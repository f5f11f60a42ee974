"""What this version wrote stays readable: a store, its ledger, two runs, their claims.

The corpus was written once, by the commands; it is never written anew. A later version may learn to
say more of it, and may not say less.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from userdp.claim import claim
from userdp.claim.verify import verify_model, verify_run
from userdp.claim.weights import description_of, digest_of
from userdp.data.store import UserStore
from userdp.plan import Plan
from userdp.reporting.run_facts import read_run

CORPUS = Path(__file__).parent / "corpus"
CLAIMS = json.loads((CORPUS / "claims.json").read_text(encoding="utf-8"))


@pytest.fixture
def corpus(tmp_path) -> Path:
    """As it was written: a checkout is a copy of a ledger, and claims would say so."""
    path = Path(shutil.copytree(CORPUS, tmp_path / "corpus"))
    place = path / "store" / "ledger.json"
    inode = (path / "store" / "ledger.jsonl").stat().st_ino
    place.write_text(json.dumps({**json.loads(place.read_text()), "inode": inode}))
    return path


@pytest.mark.parametrize("name", CLAIMS)
def test_a_ledger_claims_what_it_claimed(corpus, name):
    told = claim(corpus / name).to_dict()
    assert {key: told[key] for key in CLAIMS[name]} == CLAIMS[name]


def test_a_store_opens_and_reads(corpus):
    store = UserStore.open(corpus / "store")
    assert len(store.split("train").counts) == 12 - len(store.split("held-out-users").counts)


@pytest.mark.parametrize("name", ["run", "stopped"])
def test_a_plan_is_that_of_its_ledger(corpus, name):
    assert Plan.load(corpus / name / "plan.json") == claim(corpus / name).plan


def test_a_model_says_what_it_descends_from(corpus):
    described = description_of(corpus / "run" / "model")
    assert described is not None
    assert described.weights == digest_of(corpus / "run" / "model")
    assert described.lineage == claim(corpus / "run").lineage


def test_a_release_is_shown(corpus):
    (released,) = read_run(corpus / "run").released
    assert released.epsilon == 0.25


def test_everything_is_verified(corpus):
    assert not verify_run(corpus / "run").problems
    assert not verify_model(corpus / "run" / "model").problems
