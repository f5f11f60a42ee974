"""Invariant 13 of a loop: it releases what its own steps learned, and what its claim tells of."""

from contextlib import nullcontext

import pytest
import torch

from tests.plans import uls_plan
from tests.training.toy import attempts, moved, sgd, take, toy_model, trained
from userdp.claims import claim
from userdp.claims.lineage import Lineage
from userdp.claims.parts import ConditionKind
from userdp.core.errors import UseError
from userdp.ledger import RunFolder, StoreLedger
from userdp.queries import release
from userdp.training.guards import KnownWeights
from userdp.training.open_run import OpenRun

PLAN = uls_plan()


# Weights of another origin.


def test_invariant_13_weights_that_came_after_the_opening_take_no_step(begin, store, tmp_path):
    """What they had learned before, nobody was asked about."""
    with begin() as private:
        private._of.model.load_state_dict(moved(toy_model(store)).state_dict())
        for _ in range(2):  # a loop that catches the error gets no further
            with pytest.raises(UseError, match="not the weights that the run was begun with"):
                next(iter(private))
    assert attempts(tmp_path / "run") == 0


def test_invariant_13_a_run_without_a_step_goes_on_from_the_weights_it_was_begun_with(
    begin, store, tmp_path
):
    """Else the hints "load the weights first" and "go on with --resume" drop a condition."""
    first = begin()
    first.close()
    refused = pytest.raises(UseError, match="not the weights that the run was begun with")
    with begin(model=moved(toy_model(store)), resume=True) as private, refused:
        next(iter(private))
    with begin(model=first._of.model, resume=True) as private:
        take(private, 1)
    assert attempts(tmp_path / "run") == 1


def test_invariant_13_a_resumed_run_goes_on_from_no_other_runs_model(begin, store, tmp_path):
    with begin() as private:
        take(private, 1)
    other, model = toy_model(store), private._of.model
    trained(other, store.path, tmp_path / "other", save=False)
    with begin(model=model, resume=True) as private:
        model.load_state_dict(other.state_dict())
        with pytest.raises(UseError, match="released by another run"):
            next(iter(private))
    assert attempts(tmp_path / "run") == 1
    with begin(resume=True) as private:
        assert len(take(private)) == 4


@pytest.mark.slow
def test_invariant_13_a_resumed_run_without_steps_saves_no_other_runs_model(begin, store, tmp_path):
    private = begin()
    take(private)
    private.close()
    other, model = toy_model(store), private._of.model
    trained(other, store.path, tmp_path / "other", save=False)
    with begin(model=model, resume=True) as private:
        model.load_state_dict(other.state_dict())
        for save in (private.save, private.finish, private.save):
            with pytest.raises(UseError, match="released by another run"):
                save()
        private.close()
    assert not RunFolder(tmp_path / "run").finished


def test_invariant_13_a_run_begins_with_an_optimizer_that_took_no_step(begin, store, tmp_path):
    """Its momentum may hold text that nobody paid for, as much as weights may."""
    model = toy_model(store)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.transformer.wpe.weight.sum().backward()
    optimizer.step()
    with pytest.raises(UseError, match="state of earlier steps"):
        begin(model=model, optimizer=optimizer)
    assert not (tmp_path / "run").exists()


# Weights that do not train.


def half_frozen(store):
    """Its positions do not train."""
    model = toy_model(store)
    model.transformer.wpe.requires_grad_(False)
    return model


def run_of_half(begin, store, at_end):
    with begin(model=half_frozen(store)) as private:
        take(private)
        at_end(private._of.model)
        private.save()


@pytest.mark.parametrize("twin", [False, True], ids=["honest", "twin that does not ask"])
def test_invariant_13_frozen_weights_that_learned_are_not_released(
    begin, store, tmp_path, monkeypatch, twin
):
    if twin:
        monkeypatch.setattr(KnownWeights, "_digest_of_frozen", lambda self: "the same")
    with nullcontext() if twin else pytest.raises(UseError, match="does not train have changed"):
        run_of_half(begin, store, moved)
    assert (tmp_path / "run" / "model").exists() == twin


def test_frozen_weights_that_changed_do_not_resume(begin, store):
    with begin(model=half_frozen(store)) as private:
        take(private, 1)
    with pytest.raises(UseError, match="frozen weights"):
        begin(model=moved(private._of.model), resume=True)


# What else happens while a loop is open.


def test_invariant_13_a_look_while_a_loop_is_open_is_a_condition(begin, store, tmp_path):
    run_of_half(begin, store, lambda model: StoreLedger(store.path).look("evaluate"))
    assert ConditionKind.LOOKS in {one.kind for one in claim(tmp_path / "run").conditions}


@pytest.mark.parametrize("what", ["a run", "an answer", "an answer, twin of the opening alone"])
def test_invariant_13_what_is_released_while_a_loop_is_open_is_in_its_claim(
    begin, store, tmp_path, monkeypatch, what
):
    """A loop that stops after a step, sees a release, and ends with a rate that it chose by it."""
    if "twin" in what:
        monkeypatch.setattr(OpenRun, "steering", Lineage())
    with begin() as private:
        take(private, 1)
    if what == "a run":
        trained(toy_model(store), store.path, tmp_path / "other", PLAN, save=False)
    else:
        release(store, epsilon=0.5)
    model, own = private._of.model, PLAN.guarantee().epsilon
    with begin(model=model, optimizer=sgd(model, 0.3), resume=True) as private:
        take(private)
    found = claim(tmp_path / "run").guarantee
    price = {"a run": own, "an answer": 0.5}.get(what, 0)
    assert found.epsilon == pytest.approx(own + price)
    assert (found == claim(store.path).guarantee) == ("twin" not in what)


# One model trains in one private run at a time.


def test_invariant_13_a_model_that_an_open_run_trains_is_refused_before_the_charge(begin, store):
    with begin(name="outer") as outer:
        take(outer, 1)
        model = outer._of.model
        with pytest.raises(UseError, match="another private run of this process is open"):
            begin(model=model, name="inner")
        take(outer)
    assert [charge.run_id for charge in StoreLedger(store.path).charges()] == [outer.folder.run_id]
    begin(model=model, name="later").close()
