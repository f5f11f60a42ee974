"""The audit of a run that was trained by a loop of somebody's own."""

import pytest
import transformers

from tests.auditing import toy
from tests.ledgers import forget
from tests.training.test_saving import trained
from tests.training.toy import toy_model
from userdp.auditing.audit_run import audit_run
from userdp.claims.lineage import Lineage
from userdp.data.store import UserStore
from userdp.errors import UseError
from userdp.ledger import StoreLedger
from userdp.training.releasing import save_model

SMALL = {"canaries": toy.CANARIES, "most_users": 100}


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> UserStore:
    store = toy.audit_store(tmp_path_factory.mktemp("audited"))
    place = store.path.parent / "base"
    save_model(toy_model(store), place, tokenizer=store.tokenizer_path, lineage=Lineage())
    return store


@pytest.fixture
def store(made) -> UserStore:
    forget(made.path)
    return made


def a_run(store, tmp_path):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        store.path.parent / "base", attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0
    )
    trained(model.train(), store, tmp_path / "run", toy.audit_plan(steps=2))
    return tmp_path / "run"


def test_a_loops_run_is_attacked_and_not_repeated(store, tmp_path):
    run = a_run(store, tmp_path)
    looks = StoreLedger(store.path).history()
    with pytest.raises(UseError, match="a loop of its own") as caught:
        audit_run(run, store, **SMALL)
    assert "--no-repeat" in caught.value.hint
    assert StoreLedger(store.path).history() == looks, "nothing was read"
    assert audit_run(run, store, repeat=False, **SMALL)["inference"] is not None
    with pytest.raises(UseError, match="no reference run like it"):
        audit_run(run, store, repeat=False, references=2, **SMALL)
