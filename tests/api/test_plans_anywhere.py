"""Wherever a plan is taken, each form of it is: a `Plan`, what `userdp.plan` answers, a file."""

from __future__ import annotations

from dataclasses import replace

import pytest

import userdp
from tests.huggingface.toy import arguments, tokenized, toy_model, toy_tokenizer
from tests.plans_room.conftest import synthetic_norms
from tests.speed import fast_then_slow
from tests.training.toy import CONFIG, private_run, sgd, toy_store
from tests.training.toy import toy_model as new_model
from userdp.sweeping.request import grid

FORMS = {
    "Plan": lambda proposal, folder: proposal.plan,
    "Proposal": lambda proposal, folder: proposal,
    "file of userdp plan": lambda proposal, folder: folder / "proposal.json",
    "its name": lambda proposal, folder: str(folder / "proposal.json"),
    "file of Plan.save": lambda proposal, folder: folder / "bare.json",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A store, a proposal by examples (whose δ is judged by the declared users), its two files."""
    folder = tmp_path_factory.mktemp("plans")
    store = toy_store(folder)
    proposal = userdp.plan(
        store, epsilon=8, budget=32, steps=2, norms=synthetic_norms(most=4), population=1000,
        median_examples=4, delta=9e-4, algorithm="els", allow_large_delta=True, most_noise=9.0,
        out=folder / "proposal.json",
    )  # fmt: skip
    assert proposal.plan.algorithm == "ELS"
    proposal.plan.save(folder / "bare.json")
    return store, proposal, folder


@pytest.fixture(params=fast_then_slow(FORMS, fast=3))
def given(made, request):
    _, proposal, folder = made
    return FORMS[request.param](proposal, folder), proposal.plan


def test_train_make_private_and_sweeps(given, made, tmp_path):
    form, plan = given
    store = made[0]
    (candidate,) = grid([form], CONFIG)
    assert candidate.plan == plan
    model = new_model(store)
    options = {"out": tmp_path / "loop", "allow_large_delta": True}
    with private_run(model, sgd(model), store, form, **options) as private:
        assert private.plan == plan
    options = {"out": tmp_path / "run", "config": CONFIG}
    if form is plan or "bare" in str(form):  # which names no users
        with pytest.raises(userdp.UseError, match="4,000 examples"):
            userdp.train(store, form, **options)
        options["allow_large_delta"] = True
    assert userdp.train(store, form, **options).claim.plan == plan


def test_users_that_a_proposal_declares_stand_for_its_examples_in_a_loop_too(made, tmp_path):
    """δ = 9e-4 is below 1/1000 users, and above 1/4000 examples."""
    store, proposal, folder = made
    model = new_model(store)
    with (
        pytest.warns(userdp.UserdpWarning, match="1,000 users"),
        userdp.make_private(model, sgd(model), store, folder / "proposal.json", out=tmp_path / "a"),
    ):
        pass
    with pytest.raises(userdp.UseError, match="examples"):
        userdp.make_private(model, sgd(model), store, proposal.plan, out=tmp_path / "bare")
    with pytest.raises(userdp.UseError, match="examples"):
        userdp.tune(store, proposal.plan, out=tmp_path / "sweep", tuning="non-private")


def test_trainers(given, tmp_path):
    form, plan = given
    tokenizer = toy_tokenizer(tmp_path / "tokenizer")
    options = {"processing_class": tokenizer, "user_column": "author", "store": tmp_path / "people"}
    trainer = userdp.UserLevelTrainer(
        toy_model(), arguments(tmp_path), tokenized(tokenizer), plan=form, seq_len=8, **options
    )
    assert trainer.args.max_steps == plan.steps


@pytest.mark.parametrize("wrong", [None, 3, {"steps": 2}, replace])
def test_what_is_no_plan_is_told_what_is_one(wrong, made, tmp_path):
    store, model = made[0], new_model(made[0])
    with pytest.raises(userdp.UseError, match="a plan is needed") as error:
        userdp.make_private(model, sgd(model), store, wrong, out=tmp_path / "run")
    assert "userdp.plan" in str(error.value.hint)
