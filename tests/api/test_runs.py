"""From a store to a report in Python: the same numbers as by the command line, as values."""

import json

import pandas as pd
import pytest

import userdp
from tests.claims.lives import Teller
from tests.plans import uls_plan
from tests.training.toy import CONFIG, cycles, toy_store
from userdp.core.codec import encode, plain
from userdp.ledger import RunFolder

PLAN = uls_plan()
LEARNING = {name: value for name, value in encode(CONFIG).items() if value is not None}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return toy_store(tmp_path_factory.mktemp("data") / "store", cycles(32))


@pytest.fixture(scope="module")
def run(store, tmp_path_factory):
    return userdp.train(store, PLAN, out=tmp_path_factory.mktemp("runs") / "run", config=CONFIG)


def test_every_public_name_is_there():
    for name in userdp.__all__:
        assert getattr(userdp, name) is not None
    assert set(userdp.__all__) <= set(dir(userdp))
    with pytest.raises(AttributeError):
        userdp.nothing  # noqa: B018


def test_a_run_claims_its_plan(run):
    assert run.claim.guarantee == PLAN.guarantee()
    assert userdp.claim(run).guarantee == userdp.claim(str(run.path)).guarantee == PLAN.guarantee()
    assert run.model.is_dir()
    json.dumps(run.to_dict())


def test_the_command_prints_what_the_function_returns(store, run, tmp_path):
    tell = Teller()
    _, told = tell("evaluate", run.path, "--store", store.path, "--split", "held-out-users")
    assert plain(userdp.evaluate(run, store=store, split="held-out-users")) == told
    _, told = tell("report", run.path, "--out", tmp_path / "report.html", "--overwrite")
    assert plain(userdp.report(run, out=tmp_path / "report.html", overwrite=True)) == told


def test_answers_become_frames(store, run, tmp_path):
    exact = userdp.evaluate(run, store=store)
    assert exact["operator_only"]
    assert {"base.loss", "model.loss"} <= {*pd.json_normalize(exact["splits"])}
    shown = pd.DataFrame(userdp.report([run], out=tmp_path / "report.html")["runs"])
    assert list(shown.epsilon) == [userdp.claim(run).guarantee.epsilon]
    texts = userdp.generate(run, records=2, max_tokens=4)
    assert len(pd.DataFrame({"text": texts["texts"], "generated_by": texts["generated_by"]})) == 2


def test_a_field_beside_a_configuration_counts_and_a_misspelt_one_is_refused(store, tmp_path):
    run = userdp.train(store, PLAN, out=tmp_path / "run", config=CONFIG, learning_rate=0.1)
    assert RunFolder(run.path).read_train()["learning"] == {**LEARNING, "learning_rate": 0.1}
    with pytest.raises(userdp.UseError, match="lerning_rate") as told:
        userdp.train(store, PLAN, out=tmp_path / "other", lerning_rate=0.1)
    assert told.value.hint == "did you mean learning_rate?"
    assert not (tmp_path / "other").exists()
