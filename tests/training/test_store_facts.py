"""Public constants of a store's preparation, for the report; nothing that a record decides."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from userdp.claims import Lineage
from userdp.claims.parts import ConditionKind, Query
from userdp.data.ownership import first_owner_facts
from userdp.data.sources import user_is
from userdp.training.model_origin import lineage_of_text
from userdp.training.open_run import store_facts

SINGLE = {"rule": "single", "adjacency": "add-or-remove"}


def a_store(ownership, source, appended=()):
    sources = [
        {**one, "user_is": user_is(one["kind"], one.get("fields", []))}
        for one in (source, *appended)
    ]
    meta = SimpleNamespace(ownership=ownership, sources=sources)
    return SimpleNamespace(meta=meta, path="store")


@pytest.mark.parametrize("kind", ["jsonl", "mbox", "parquet", "csv+jsonl"])
@pytest.mark.pitfall(number=47)
def test_invariant_9_whether_some_record_has_several_owners_is_not_told(kind):
    """The same is said of a source that may name several, whether or not one record does."""
    source = {"kind": kind, "may_name_several": True}
    none, some = (store_facts(a_store(o, source)) for o in (SINGLE, first_owner_facts()))
    assert none == some
    assert none["owners"] == first_owner_facts()["assumption"]


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
