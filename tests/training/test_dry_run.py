"""A dry run tells what a run will cost and claim; nothing is charged and nothing is written."""

import json

import pytest

import userdp
from tests.plans import uls_plan
from tests.training.toy import CONFIG, run_all, sgd, toy_model
from userdp.cli.app import run as command
from userdp.core.errors import FailureError, UseError
from userdp.training import dry_run


def bytes_under(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_dry_run_writes_nothing_and_foresees_the_claims(store, tmp_path):
    model, plan, out = toy_model(store), uls_plan(), tmp_path / "run"
    before = bytes_under(tmp_path)
    with userdp.make_private(model, sgd(model), store, plan, out=out, dry_run=True) as private:
        assert not list(private)
        private.save()
    dry = private.forecast
    assert bytes_under(tmp_path) == before
    assert not out.exists()
    assert dry.noise_multiplier == plan.noise.multiplier
    assert dry.seconds == dry.seconds_per_step * plan.steps > 0
    assert dry.bytes > sum(one.nbytes for one in model.parameters())
    run_all(model, store, plan, out)
    assert userdp.claim(out).guarantee.epsilon == dry.claim["epsilon"]
    assert userdp.claim(store.path).guarantee == dry.store.guarantee
    after = bytes_under(tmp_path)
    again = userdp.make_private(
        model, sgd(model), store, plan, out=tmp_path / "other", dry_run=True
    )
    assert bytes_under(tmp_path) == after
    assert again.forecast.store.guarantee.epsilon > dry.store.guarantee.epsilon
    with pytest.raises(UseError, match="there is a run at"):
        userdp.make_private(model, sgd(model), store, plan, out=out, dry_run=True)


def test_memory_that_runs_out_is_told_and_the_model_stays_as_it_was(store, tmp_path, monkeypatch):
    def no_room(model, loss, units):
        model.transformer.noted = units
        raise MemoryError

    monkeypatch.setattr(dry_run, "bytes_of_a_pass", no_room)
    model = toy_model(store)
    with pytest.raises(FailureError, match="no room for a pass") as caught:
        userdp.make_private(
            model, sgd(model), store, uls_plan(), out=tmp_path / "run", dry_run=True
        )
    assert "--micro-batch" in caught.value.hint
    assert not hasattr(model.transformer, "noted")


def test_the_command_line_has_it_too(store, tmp_path, capsys):
    uls_plan().save(tmp_path / "plan.json")
    before = bytes_under(tmp_path)
    options = ["--plan", str(tmp_path / "plan.json"), "--out", str(tmp_path / "run"), "--dry-run"]
    options += ["--model", "new", "--set", "learning.width=16", "--set", "learning.heads=2"]
    assert command(["train", str(store.path), *options, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["claim"]["epsilon"] == told["store"]["epsilon"]
    plain = userdp.PlainPlan(steps=1, batch_size=2)
    with pytest.raises(UseError, match="no claim"):
        userdp.train(store, plan=plain, out=tmp_path / "run", config=CONFIG, dry_run=True)
    assert bytes_under(tmp_path) == before
