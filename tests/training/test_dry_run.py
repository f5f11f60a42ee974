"""A dry run tells what a run will cost and claim; nothing is charged and nothing is written."""

import pytest

import userdp
from tests.plans import uls_plan
from tests.training.toy import CONFIG, run_all, sgd, toy_model
from userdp.cli.output import in_words
from userdp.core.codec import plain
from userdp.core.errors import FailureError, UseError
from userdp.training import checks_before_charge

PLAN = uls_plan()


def bytes_under(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def dried(store, tmp_path):
    def dried(model, name="run"):
        dry = userdp.PrivateOptions(dry_run=True)
        return userdp.make_private(model, sgd(model), store, PLAN, out=tmp_path / name, options=dry)

    return dried


def test_a_dry_run_writes_nothing_and_foresees_the_claims(store, dried, tmp_path):
    model, out, before = toy_model(store), tmp_path / "run", bytes_under(tmp_path)
    with dried(model) as private:
        assert not list(private)
        private.save()
    dry = private.forecast
    assert bytes_under(tmp_path) == before
    assert not out.exists()
    assert dry["noise_multiplier"] == PLAN.noise.multiplier
    assert 2**25 < dry["bytes"] < 2**38  # of this process
    assert dry["seconds"] == dry["seconds_per_step"] * PLAN.steps > 0
    run_all(model, store, PLAN, out)
    assert userdp.claim(out).guarantee.epsilon == dry["claim"]["epsilon"]
    assert userdp.claim(store.path).guarantee == dry["store"].guarantee
    assert dry["claim"]["conditions"] == [one.in_words for one in userdp.claim(out).conditions]
    userdp.stats(store)
    after, again = bytes_under(tmp_path), dried(model, "other").forecast
    assert "exact numbers that stats showed" in str(again["claim"]["conditions"])
    assert bytes_under(tmp_path) == after
    assert again["store"].guarantee.epsilon > dry["store"].guarantee.epsilon
    with pytest.raises(UseError, match="there is a run at"):
        dried(model)


def test_memory_that_runs_out_is_told_and_the_model_stays_as_it_was(store, dried, monkeypatch):
    model = toy_model(store)

    def no_room(clip):
        model.transformer.noted = clip()
        raise MemoryError

    monkeypatch.setattr(checks_before_charge, "seconds_of", no_room)
    with pytest.raises(FailureError, match="no room for a pass") as caught:
        dried(model)
    assert "--micro-batch" in caught.value.hint
    assert not hasattr(model.transformer, "noted")


def test_the_trainer_has_it_too_and_a_run_without_privacy_has_none(store, tmp_path):
    how, before = (
        {"out": tmp_path / "run", "config": CONFIG, "dry_run": True},
        bytes_under(tmp_path),
    )
    answer = userdp.train(store, PLAN, **how)
    told = plain(answer)
    assert told["claim"]["epsilon"] == told["store"]["epsilon"]
    assert "the store claims" in "".join(in_words(answer, "train"))
    with pytest.raises(UseError, match="no claim"):
        userdp.train(store, userdp.PlainPlan(steps=1, batch_size=2), **how)
    assert bytes_under(tmp_path) == before
