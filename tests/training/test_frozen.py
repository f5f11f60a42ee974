"""What a run does not train is released too: it stays what it was when the run was opened."""

from __future__ import annotations

import pytest
import torch

from tests.plans import uls_plan
from tests.training.toy import private_run, sgd, toy_model
from userdp.claims import claim
from userdp.claims.parts import ConditionKind
from userdp.core.errors import UseError
from userdp.ledger import StoreLedger
from userdp.training.origin import KnownWeights
from userdp.training.private import make_private

PLAN = uls_plan()


def half_frozen(store):
    """Its embeddings do not train; its head is tied to them."""
    model = toy_model(store)
    model.transformer.wpe.requires_grad_(False)
    return model


def train_beside(model) -> None:
    """Stands for a training of the frozen part, without privacy."""
    with torch.no_grad():
        model.transformer.wpe.weight.add_(0.1)


def run_of(model, store, out, *, at_end, **options):
    optimizer = sgd(model)
    with private_run(model, optimizer, store, PLAN, out=out, **options) as private:
        for _ in private:
            optimizer.step()
        at_end(model)
        private.save()
    return private


def test_invariant_13_frozen_weights_that_learned_are_not_released(store, tmp_path):
    model = half_frozen(store)
    with pytest.raises(UseError, match="does not train have changed"):
        run_of(model, store, tmp_path / "run", at_end=train_beside)
    assert not (tmp_path / "run" / "model").exists()


def test_broken_twin_without_the_question_they_are_released(store, tmp_path, monkeypatch):
    monkeypatch.setattr(KnownWeights, "_digest_of_frozen", lambda self: "the same")
    private = run_of(half_frozen(store), store, tmp_path / "run", at_end=train_beside)
    assert claim(tmp_path / "run").guarantee == PLAN.guarantee()
    assert private.folder.model.exists()


def test_frozen_weights_that_changed_do_not_resume(store, tmp_path):
    model = half_frozen(store)
    with make_private(model, sgd(model), store, PLAN, out=tmp_path / "run") as private:
        next(iter(private))
    train_beside(model)
    with pytest.raises(UseError, match="frozen weights"):
        make_private(model, sgd(model), store, PLAN, out=tmp_path / "run", resume=True)


def test_invariant_13_a_look_while_a_loop_is_open_is_a_condition(store, tmp_path):
    def look(model) -> None:
        StoreLedger(store.path).look("evaluate")

    run_of(half_frozen(store), store, tmp_path / "run", at_end=look)
    kinds = {condition.kind for condition in claim(tmp_path / "run").conditions}
    assert ConditionKind.LOOKS in kinds
