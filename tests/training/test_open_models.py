"""One model trains in one private run at a time, and one thread takes its steps."""

from __future__ import annotations

import pytest

from tests.plans import uls_plan
from tests.training.toy import sgd, toy_model, toy_store, trained
from userdp.core.errors import UseError
from userdp.ledger import RunFolder, StoreLedger
from userdp.training.private import make_private

PLAN = uls_plan(steps=3)


def test_invariant_13_a_model_that_an_open_run_trains_is_refused_before_the_charge(store, tmp_path):
    model = toy_model(store)
    optimizer = sgd(model)
    with make_private(model, optimizer, store, PLAN, out=tmp_path / "outer") as outer:
        for step in outer:
            if step.number == 1:
                with pytest.raises(UseError, match="another private run of this process is open"):
                    make_private(model, sgd(model), store, PLAN, out=tmp_path / "inner")
            optimizer.step()
    assert [charge.run_id for charge in StoreLedger(store.path).charges()] == [outer.folder.run_id]
    other = make_private(model, sgd(model), store, PLAN, out=tmp_path / "later")
    other.close()


def test_broken_twin_who_asks_nobody_releases_what_another_run_has_learned(
    store, tmp_path, monkeypatch
):
    """Over people of another store, of whom the outer run's ledger can know nothing."""
    monkeypatch.setattr("userdp.training.private_run.require_free", lambda model: None)
    elsewhere = toy_store(tmp_path / "elsewhere")
    model = toy_model(store)
    optimizer, other = sgd(model), sgd(model)
    with make_private(model, optimizer, store, PLAN, out=tmp_path / "outer") as outer:
        for step in outer:
            optimizer.step()
            if step.number == 1:
                trained(model, elsewhere, tmp_path / "inner", PLAN, optimizer=other)
        outer.save()
    inner = RunFolder(tmp_path / "inner").run_id
    assert inner not in {part.id for part in outer.lineage.parts}
