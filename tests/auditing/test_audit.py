"""Whole audits of toy runs: right ones pass, broken ones are flagged, stores are left alone."""

import json
import math
import stat
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers

from tests.auditing import toy
from tests.auditing.toy import broken, noiseless, not_clipped, reused, shuffled, under_noised
from tests.ledgers import forget, run_with
from tests.plans import uls_plan
from tests.speed import fast_then_slow
from tests.training.toy import toy_model, trained
from userdp.auditing import canaries
from userdp.auditing.audit_run import Attacks, audit_run, contradictions, price_of_steps
from userdp.auditing.canaries import copy_with, make_canaries
from userdp.auditing.observer import Directions
from userdp.claims import claim
from userdp.claims.lineage import Lineage, of_parts
from userdp.cli.app import run as userdp
from userdp.core.errors import UseError
from userdp.data.splits import Split
from userdp.ledger import StoreLedger
from userdp.ledger.charged_parts import Query, Unclaimed
from userdp.plans.provenance import MadeFor
from userdp.sampling import FixedSizeUsers
from userdp.training.config import PlainPlan
from userdp.training.loop import train
from userdp.training.model_origin import ledger_id
from userdp.training.released_model import save_model

CLAIMED = toy.audit_plan().guarantee().epsilon


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return toy.audit_store(tmp_path_factory.mktemp("audited"))


@pytest.fixture
def store(made):
    forget(made.path)  # a run inherits what earlier ones released
    return made


def test_a_right_run_passes(store, tmp_path):
    found = toy.audited(store, tmp_path)
    assert contradictions(found, CLAIMED) == []
    assert found.bound.epsilon_lower < CLAIMED
    assert 0.8 * CLAIMED < found.steps.epsilon_lower < CLAIMED
    assert found.bound.most_detectable > 0
    assert CLAIMED < found.steps.detectable_epsilon < 1.3 * CLAIMED
    assert found.steps.worst_move == pytest.approx(1, abs=2e-3)
    assert not any((tmp_path / "work").iterdir())
    assert StoreLedger(store.path).history().charges == {}


@pytest.mark.parametrize(
    ("sabotage", "name"),
    fast_then_slow(
        [
            (under_noised, "steps: lower bound above the claim"),
            (shuffled, "steps: participation"),
            (reused, "steps: noise repeated between steps"),
            (not_clipped, "steps: sensitivity"),
        ]
    ),
)
def test_broken_runs_are_caught_by_the_steps(store, tmp_path, sabotage, name):
    with broken(sabotage):
        found = toy.audited(store, tmp_path)
    assert name in contradictions(found, CLAIMED)
    assert contradictions(found, math.inf) == [], "nothing is held against a run without a claim"


@pytest.mark.slow
def test_canaries_alone_catch_a_run_without_noise(store, tmp_path):
    """A small claim and next to no noise: whoever was drawn can be read off the sums."""
    plan = toy.audit_plan(noise_multiplier=20.0)
    with broken(noiseless):
        found = toy.audited(store, tmp_path, plan, canaries=60)
    claimed = plan.guarantee().epsilon
    assert found.bound.epsilon_lower > claimed
    assert "canaries: lower bound above the claim" in contradictions(found, claimed)


def test_who_makes_room_does_not_depend_on_the_coins(store, tmp_path, monkeypatch):
    """Else a coin would move two users, and guesses would prove more than the mechanism's ε."""
    made = make_canaries(store, 40)
    assert made.rows.shape == (40, store.meta.seq_len)
    assert 0 <= made.rows.min() <= made.rows.max() < store.meta.vocab_size
    monkeypatch.setattr(canaries, "secret_generator", lambda: np.random.default_rng(1))
    kept, law = [], toy.audit_plan().sampling
    for coins in (np.zeros(40, dtype=bool), np.ones(40, dtype=bool)):
        tossed = replace(made, included=coins)
        copy = copy_with(store, tossed, tmp_path / str(coins[0]), sampling=law)
        kept.append([user for user in copy.user_ids() if user.startswith(b"user")])
        assert copy.users == len(kept[-1]) + coins.sum()
    assert kept[0] == kept[1]
    assert len(kept[0]) == len(store.split(Split.TRAIN).counts) - 40
    every = replace(made, included=np.ones(40, dtype=bool))
    law = FixedSizeUsers(batch_size=4, least_population=len(kept[0]) + 20, group_size=2)
    with pytest.raises(UseError, match="fewer than"):  # with half of the canaries it would not be
        copy_with(store, every, tmp_path / "bounded", sampling=law)


def test_directions_beyond_the_memory_keep_the_largest_coordinates():
    draw = torch.Generator().manual_seed(0)
    vectors = [{"a": torch.randn(50, generator=draw), "b": torch.zeros(30)} for _ in range(5)]
    for vector in vectors:
        vector["b"][7] = 40.0
    whole, few = (Directions(iter(vectors), count=5, most_bytes=20 * n) for n in (1 << 20, 3))
    assert few.units.shape == (5, 3)
    assert np.allclose(few.gram(), 1, atol=0.1)  # the coordinate that all share is among the three
    flat = torch.stack([torch.cat([v["a"], v["b"]]) for v in vectors]).double()
    unit = flat / flat.norm(dim=1, keepdim=True)
    assert np.allclose(whole.norms, flat.norm(dim=1))
    assert np.allclose(whole.gram(), unit @ unit.T, atol=1e-5)
    assert np.allclose(whole.along(vectors[2]), unit @ flat[2], rtol=1e-5)


def test_too_many_canaries_for_a_store_are_refused(store, tmp_path):
    with pytest.raises(UseError, match="would take the place"):
        toy.audited(store, tmp_path, canaries=400)
    assert not any((tmp_path / "work").iterdir())


def said(capsys, run, store, *options, status=0):
    assert userdp(["audit", str(run), "--store", str(store.path), *options]) == status
    told = capsys.readouterr()
    return told.out or told.err


@pytest.mark.slow
def test_a_run_without_privacy_is_attacked_and_nothing_is_held_against_it(tmp_path, capsys):
    store, run = toy.audit_store(tmp_path), tmp_path / "run"
    train(store, PlainPlan(steps=30, batch_size=16), toy.CONFIG, out=run)
    told = json.loads(said(capsys, run, store, "--json"))
    assert (told["claimed_epsilon"], told["extra_run"], told["false_alarm"]) == ("inf", None, 0)
    assert 0 <= told["inference"]["auc_low"] <= told["inference"]["auc_high"] <= 1
    kept = run / "audit" / "audit.json"
    assert json.loads(kept.read_text())["inference"] == told["inference"]
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "audit" not in (run / "ledger.jsonl").read_text()


@pytest.mark.slow
def test_the_command_passes_a_right_run_and_fails_a_shuffled_one(store, tmp_path, capsys):
    run, measured = tmp_path / "run", MadeFor(store=ledger_id(store))
    train(store, replace(toy.audit_plan(), made_for=measured), toy.CONFIG, out=run)
    before = StoreLedger(store.path).history().charges
    told = said(capsys, run, store, "--canaries", "16", "--references", "2")
    assert "Nothing contradicts the claim" in told
    assert "contradicted with probability at most 0.0518, over all checks and canaries" in told
    kept = json.loads((run / "audit" / "audit.json").read_text())
    assert kept["false_alarm"] == pytest.approx(0.05 + 0.001 + 7e-4)
    assert kept["references"]["runs"] == 2
    assert 0 <= kept["references"]["auc_low"] <= kept["references"]["auc_high"] <= 1
    assert StoreLedger(store.path).history().charges == before
    with broken(shuffled):
        found = audit_run(run, store, Attacks(inference=False, canaries=16))
    assert not found["passed"]
    assert "steps: participation" in found["flagged"]
    assert "another store" in said(capsys, run, toy.audit_store(tmp_path / "other", 30), status=2)
    assert "an even number" in said(capsys, run, store, "--references", "3", status=2)


@pytest.mark.slow
def test_a_loops_run_is_attacked_and_not_repeated(store, tmp_path):
    base, run = tmp_path / "base", tmp_path / "run"
    save_model(toy_model(store), base, tokenizer=store.tokenizer_path, lineage=Lineage())
    model = transformers.AutoModelForCausalLM.from_pretrained(
        base, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0
    )
    trained(model.train(), store, run, toy.audit_plan(steps=2))
    looks = StoreLedger(store.path).history()
    for options in ({}, {"repeat": False, "references": 2}):
        with pytest.raises(UseError, match="a loop of its own") as caught:
            audit_run(run, store, Attacks(**options))
        assert "--no-repeat" in caught.value.hint
    assert StoreLedger(store.path).history() == looks, "nothing was read"
    assert audit_run(run, store, Attacks(repeat=False))["inference"] is not None


@pytest.mark.parametrize("claims", [True, False])
def test_an_extra_run_is_held_against_the_price_of_its_steps_alone(tmp_path, claims):
    """Nothing is held against a run that claims nothing."""
    plan, options = uls_plan(), {} if claims else {"payer": Unclaimed(id="run")}
    before = of_parts([Query(id="q", name="users", pure_epsilon=3.0)])
    folder = run_with(tmp_path / "run", plan, plan.steps, lineage=before.plain, **options)
    own = plan.guarantee().epsilon if claims else math.inf
    assert claim(folder).guarantee.epsilon == own + 3.0
    assert price_of_steps(claim(folder)) == own
    assert price_of_steps(claim(run_with(tmp_path / "plain", None, 0))) == math.inf
