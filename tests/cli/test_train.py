"""`userdp train` from outside: exit statuses, and nothing half-written."""

import json
import shlex
from pathlib import Path

import pytest

from tests.claims.lives import SHAPE
from tests.plans import uls_plan
from tests.speed import fast_then_slow
from tests.training.processes import start
from tests.training.toy import attempts, sgd, toy_model
from userdp.claims import claim
from userdp.ledger import RunFolder, StoreLedger
from userdp.plans import Plan
from userdp.plans.preset_defaults import preset
from userdp.plans.resolve_plan import PlanFields, resolve
from userdp.training.private_run import make_private

COMMON = "--population 100 --group-size 2 --l2-clip-norm 1 --delta 1e-5 "
COMMON += "--set plan.noise_multiplier=2"
PLAN = shlex.split(f"{COMMON} --cohort-size 8 --steps 3")
MODEL = ("--model", "new", *SHAPE)


@pytest.fixture
def train(store, tmp_path, userdp):
    """Runs ``userdp train`` on a small model: its status, what it told, what stood on stderr."""

    def run(*options: object):
        line = ("train", store.path, "--out", tmp_path / "run", *options, *MODEL, "--json")
        status, out, err = userdp(*line)
        return status, json.loads(out), err

    return run


@pytest.mark.parametrize("sampling", fast_then_slow(["users", "examples"]))
def test_the_printed_epsilon_is_that_of_the_ledger(store, train, tmp_path, sampling):
    by_example = f"{COMMON} --set sampling.kind=examples --set plan.batch_size=8 --steps 3"
    status, result, _ = train(*(PLAN if sampling == "users" else shlex.split(by_example)))
    assert status == 0
    for path in (tmp_path / "run" / "ledger.jsonl", store.path):
        assert result["epsilon"] == claim(path).guarantee.epsilon
    told = [result[name] for name in ("unit", "adjacency", "sampling", "steps")]
    assert told == ["user", "add-or-remove", sampling, 3]
    assert Path(result["model"]).is_dir()
    learned = RunFolder(tmp_path / "run").read_train()["learning"]
    assert learned["learning_rate"] == 0.002


def test_a_run_without_privacy_says_so_loudly(store, train):
    status, result, err = train("--set", "plain.steps=2", "--set", "plain.batch_size=8")
    assert (status, result["epsilon"]) == (0, "inf")
    assert "no protection" in err
    assert claim(store.path).guarantee.epsilon == float("inf")


def test_a_run_folder_in_use_is_a_failure_of_status_1(store, train, tmp_path):
    model = toy_model(store)
    with make_private(model, sgd(model), store, uls_plan(), out=tmp_path / "run"):
        status, told, _ = train(*PLAN)
        assert (status, "in use" in told["error"]) == (1, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("most_bytes", "what"), [(100, ""), (1100, ".jsonl"), (20_000, "checkpoint")]
)
def test_a_full_disk_is_a_failure_of_status_1_and_the_run_goes_on_when_there_is_space(
    store, userdp, tmp_path, most_bytes, what
):
    """At 100 bytes nothing begins; at 1,100 the ledger is full, at 20,000 the first checkpoint."""
    run = tmp_path / "run"
    plan = shlex.split(f"{COMMON} --cohort-size 8 --steps 12")
    command = ["train", str(store.path), "--out", str(run), *plan, *MODEL]
    process = start(command, most_bytes=most_bytes, stderr=tmp_path / "stderr")
    process.join()
    printed = (tmp_path / "stderr").read_text()
    assert process.exitcode == 1, printed
    assert sum(line.startswith("error:") for line in printed.splitlines()) == 1
    assert what in printed
    assert "Traceback" not in printed
    assert not list(run.rglob(".partial*"))
    if most_bytes == 100:
        assert not run.exists()
        assert StoreLedger(store.path).history().charges == {}
    else:
        assert userdp(*command, "--resume")[0] == 0
        assert attempts(run) == 12
        assert claim(run / "ledger.jsonl").guarantee == claim(store.path).guarantee


BUDGET, FEW = ("--epsilon", 4, "--population", 20_000), ("--steps", 2)


@pytest.mark.parametrize(("population", "rate"), [(20_000, 0.002), (100, 0.003)])
def test_a_budget_and_a_population_suffice(train, tmp_path, population, rate):
    status, result, err = train("--epsilon", 4, "--population", population)
    chosen, folder = preset(epsilon=4, population=population), RunFolder(tmp_path / "run")
    assert (status, result["steps"]) == (0, chosen.steps)
    assert chosen.sentence() in err
    assert 3.99 < result["epsilon"] <= 4
    plan, _ = resolve(chosen=PlanFields(epsilon=4, population=population))
    assert Plan.load(folder.plan) == plan
    trained = folder.read_train()["learning"]
    assert (trained["learning_rate"], trained["schedule"]) == (rate, "following"), "as measured"
    assert claim(folder.path).conditions == (), "nothing was looked at before"


def test_what_is_given_stands_in_place_of_the_presets_choice(train, tmp_path):
    own = ("--cohort-size", 32, "--delta", 1e-6, "--learning-rate", 0.001, *FEW)
    status, _, err = train(*BUDGET, *own)
    folder = RunFolder(tmp_path / "run")
    plan = Plan.load(folder.plan)
    assert (status, plan.denominator, plan.steps, plan.budget.target_delta) == (0, 32, 2, 1e-6)
    assert plan.sampling.group_size == preset(epsilon=4, population=20_000).group_size
    assert folder.read_train()["learning"]["learning_rate"] == 0.001
    assert "The preset chose group size 1, clip norm 0.1, without a look" in err
