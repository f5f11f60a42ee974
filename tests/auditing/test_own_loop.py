"""The audit of a run that was trained by a loop of somebody's own."""

import pytest
import transformers

from benchmarks.broken_runs import under_noised
from tests.auditing import toy
from tests.ledgers import forget
from tests.training.test_saving import trained
from tests.training.toy import toy_model
from userdp.auditing.audit_run import audit_run
from userdp.claims.lineage import Lineage
from userdp.data.store import UserStore
from userdp.errors import UseError
from userdp.gradients import causal_lm_loss
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


def a_run(store, tmp_path, *, lora=False, steps=25, **options):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        store.path.parent / "base", attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0
    )
    if lora:
        import peft

        settings = peft.LoraConfig(r=2, target_modules="all-linear", fan_in_fan_out=True)
        model = peft.get_peft_model(model, settings)
    trained(model.train(), store, tmp_path / "run", toy.audit_plan(steps=steps), **options)
    return tmp_path / "run"


@pytest.mark.slow
@pytest.mark.parametrize("lora", [False, True])
def test_a_loops_run_is_attacked_and_repeated_as_it_was(store, tmp_path, lora):
    run = a_run(store, tmp_path, lora=lora)
    found = audit_run(run, store, **SMALL)
    assert found["passed"]
    assert found["inference"]["auc"] == pytest.approx(0.5, abs=0.3)
    assert 0.5 * found["claimed_epsilon"] < found["epsilon_lower"] < found["claimed_epsilon"]


@pytest.mark.slow
def test_a_loops_run_of_too_little_noise_is_caught(store, tmp_path):
    run = a_run(store, tmp_path)
    found = audit_run(run, store, inference=False, sabotage=under_noised, **SMALL)
    assert not found["passed"]
    assert "steps: lower bound above the claim" in found["flagged"]


def test_a_loss_that_nobody_else_has_is_attacked_but_not_repeated(store, tmp_path):
    run = a_run(store, tmp_path, steps=2, loss=lambda *rows: 2 * causal_lm_loss(*rows))
    looks = StoreLedger(store.path).history()
    with pytest.raises(UseError, match="a loss of its own") as caught:
        audit_run(run, store, **SMALL)
    assert "--no-repeat" in caught.value.hint
    assert StoreLedger(store.path).history() == looks, "nothing was read"
    assert audit_run(run, store, repeat=False, **SMALL)["inference"] is not None
    with pytest.raises(UseError, match="no reference runs like it"):
        audit_run(run, store, repeat=False, references=2, **SMALL)


@pytest.mark.slow
def test_a_loop_whose_base_is_gone_is_not_compared_with_another_model(store, tmp_path):
    model = toy_model(store)
    trained(model, store, tmp_path / "run", toy.audit_plan(steps=2))
    with pytest.raises(UseError, match="made in memory"):
        audit_run(tmp_path / "run", store, **SMALL)
