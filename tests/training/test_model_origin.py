"""What a run descends from, as its claim says: adapters, weights in memory, the store's text."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import peft
import pytest
import torch

from tests.plans import uls_plan
from tests.speed import fast_then_slow
from tests.training import toy
from tests.training.toy import loaded, sgd, take, trained
from userdp.claims import Lineage, claim
from userdp.claims.lineage import ConditionKind
from userdp.core.errors import UseError
from userdp.data.ownership import FIRST_OWNER
from userdp.data.sources import user_is
from userdp.ledger.charged_parts import Query
from userdp.plans.provenance import MadeFor
from userdp.training import model_origin as origin_module
from userdp.training.config import PlainPlan
from userdp.training.model_origin import (
    ledger_id,
    lineage_of_model,
    lineage_of_text,
    require_made_for,
)
from userdp.training.open_run import Training, store_facts
from userdp.training.without_privacy import PlainRun

PLAN = uls_plan(steps=1)


def adapted(base, **settings):
    return toy.adapted(loaded(base), **{"target_modules": ["c_attn"], **settings})


@pytest.fixture
def begun(begin, tmp_path):
    """The claim of a run that has taken no step yet: it pays for its whole plan."""

    def begun(model):
        begin(PLAN, model=model).close()
        return claim(tmp_path / "run")

    return begun


def told(claimed):
    """The conditions that speak of weights; earlier runs over the store show exact numbers too."""
    conditions = [(str(one.kind), one.told) for one in claimed.conditions]
    return [one for one in conditions if one[0].endswith(("origin", "memory"))]


NEW = {
    "lora": {},
    "gaussian": {"init_lora_weights": "gaussian"},
    "an output layer beside them": {"modules_to_save": ["lm_head"]},
    "of embeddings": {"target_modules": ["wte"], "fan_in_fan_out": False},
    "a magnitude besides": {"use_dora": True},
}


@pytest.mark.parametrize("kind", fast_then_slow(list(NEW)))
def test_invariant_13_new_adapters_on_a_known_base_need_no_condition(base, begun, kind):
    assert not told(begun(adapted(base, **NEW[kind])))


@pytest.mark.parametrize("twin", [False, True], ids=["honest", "twin that takes all for new"])
def test_invariant_13_adapters_that_learned_elsewhere_are_a_condition(
    base, begun, monkeypatch, twin
):
    """The condition speaks of them, not of the base, which is known."""
    if twin:
        monkeypatch.setattr(origin_module, "are_fresh", lambda model: True)
    claimed = begun(adapted(base, init_lora_weights=False))  # as after steps: no factor is zero
    assert told(claimed) == [("adapters-of-unknown-origin", "no ledger knows them")] * (not twin)
    assert twin or "that it began with (no ledger knows them)" in claimed.headline


def test_invariant_13_an_initialisation_from_data_is_a_condition(base, begun):
    """EVA's product is zero, and its other factor is a statistic of the data."""
    model = adapted(base, init_lora_weights="eva")
    rows = torch.arange(2, 22).repeat(2).reshape(2, 4, 5)
    batches = [
        {"input_ids": one, "labels": one, "attention_mask": torch.ones_like(one)} for one in rows
    ]
    peft.initialize_lora_eva_weights(model, batches, show_progress_bar=False)
    assert ("adapters-of-unknown-origin", "initialised from data: eva") in told(begun(model))


def test_invariant_13_adapters_of_an_earlier_run_bring_its_claim(store, base, begun, tmp_path):
    trained(adapted(base), store, tmp_path / "first", PLAN)
    adapter = tmp_path / "first" / "adapter"
    claimed = begun(peft.PeftModel.from_pretrained(loaded(base), adapter, is_trainable=True))
    assert claimed.guarantee.epsilon == pytest.approx(2 * PLAN.guarantee().epsilon)
    assert not told(claimed)


def test_invariant_13_nothing_is_claimed_on_top_of_adapters_without_privacy(
    store, base, begun, tmp_path
):
    model, out = adapted(base), tmp_path / "plain"
    of = {"model": model, "optimizer": sgd(model), "store": store, "out": out}
    plan, descends = PlainPlan(steps=2, batch_size=4), lineage_of_model(store, model)
    with PlainRun(Training(**of, plan=plan, base=descends), seed=0).open() as run:
        take(run)
        run.save()
    model = adapted(base)
    peft.set_peft_model_state_dict(model, peft.load_peft_weights(str(out / "adapter")))
    assert begun(model).guarantee.epsilon == math.inf


SINGLE = {"rule": "single", "adjacency": "add-or-remove"}


def a_store(ownership, source, appended=()):
    sources = [
        {**one, "user_is": user_is(one["kind"], one.get("fields", []))}
        for one in (source, *appended)
    ]
    return SimpleNamespace(meta=SimpleNamespace(ownership=ownership, sources=sources), path="store")


@pytest.mark.parametrize("kind", ["jsonl", "mbox", "parquet", "csv+jsonl"])
@pytest.mark.pitfall(number=47)
def test_invariant_9_whether_some_record_has_several_owners_is_not_told(kind):
    """The same is said of a source that may name several, whether or not one record does."""
    source = {"kind": kind, "may_name_several": True}
    none, some = (store_facts(a_store(o, source)) for o in (SINGLE, FIRST_OWNER))
    assert none == some
    assert none["owners"] == FIRST_OWNER["assumption"]


def test_text_filtered_against_private_data_is_a_condition_once(tmp_path):
    filtered = {"kind": "folder", "filtered_against_private": [{"private_data": "feed"}]}
    later = {"kind": "folder", "filtered_against_private": [{"private_data": "beef"}]}
    lineage = lineage_of_text(a_store(SINGLE, filtered, [later, filtered]))
    assert [one.told for one in lineage.conditions] == ["beef", "feed"]
    assert {one.kind for one in lineage.conditions} == {ConditionKind.FILTERED}
    assert lineage_of_text(a_store(SINGLE, {"kind": "folder"})) == Lineage()


def test_generated_text_carries_what_its_model_descends_from(tmp_path):
    wrote = Lineage(parts=(Query(id="q", name="users", pure_epsilon=0.5),))
    known = {"kind": "jsonl", "text_lineage": [wrote.plain]}
    assert lineage_of_text(a_store(SINGLE, known, [known])) == wrote
    lost = lineage_of_text(a_store(SINGLE, {"kind": "jsonl", "text_of_unknown_model": True}))
    assert [one.kind for one in lost.conditions] == [ConditionKind.TEXT]


MADE = MadeFor(weights="a" * 64, adapters="rank 4")


@pytest.mark.pitfall(number=44)
@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({}, None),
        ({"store": None, "weights": None}, None),
        ({"store": "another"}, "store"),
        ({"weights": "b" * 64}, "base model"),
        ({"adapters": "rank 8"}, "adapters"),
        ({"adapters": None}, "adapters"),
    ],
)
def test_a_plan_is_for_what_its_norms_were_measured_on(
    store: Any, changes: dict[str, str | None], what: str | None
) -> None:
    wanted = replace(MADE, **{"store": ledger_id(store), **changes})
    if what is None:
        require_made_for(wanted, store, MADE)
        return
    with pytest.raises(UseError, match=rf"norms of another {what}"):
        require_made_for(wanted, store, MADE)
