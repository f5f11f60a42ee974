"""`userdp train store --epsilon 4 --population 20000` suffices, here and in Python."""

import json
import shutil

import pytest

import userdp as package
from tests.training.toy import toy_store
from userdp.claims import claim
from userdp.cli.app import run as userdp
from userdp.data.store import UserStore
from userdp.ledger import RunFolder, StoreLedger
from userdp.plans import Plan
from userdp.plans.preset import preset
from userdp.plans.resolved import PlanFields, resolve

TOY = [
    "--model",
    "new",
    "--set",
    "learning.layers=1",
    "--set",
    "learning.width=16",
    "--set",
    "learning.heads=2",
]
TOY_OPTIONS = {
    "model": "new",
    "layers": 1,
    "width": 16,
    "heads": 2,
}
BUDGET = ["--epsilon", "4", "--population", "20000"]
FEW = ["--steps", "2"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    return toy_store(tmp_path_factory.mktemp("prepared")).path


@pytest.fixture
def store(prepared, tmp_path) -> UserStore:
    shutil.copytree(prepared, tmp_path / "store")
    return UserStore.open(tmp_path / "store")


def train(store, out, *options):
    return userdp(["train", str(store.path), "--out", str(out), *BUDGET, *TOY, *options])


def test_a_budget_and_a_population_suffice(store, tmp_path, capsys):
    assert train(store, tmp_path / "run", "--json") == 0
    printed = capsys.readouterr()
    chosen = preset(epsilon=4, population=20_000)
    assert chosen.sentence() in printed.err
    result = json.loads(printed.out)
    assert 3.99 < result["epsilon"] <= 4
    assert result["steps"] == chosen.steps
    plan, _ = resolve(chosen=PlanFields(epsilon=4, population=20_000))
    assert Plan.load(RunFolder(tmp_path / "run").plan) == plan
    trained = RunFolder(tmp_path / "run").read_train()["learning"]
    assert (trained["learning_rate"], trained["schedule"]) == (0.002, "constant"), "as measured"
    assert claim(tmp_path / "run").conditions == (), "nothing was looked at before"


def test_in_python_too_and_it_is_the_same_run(store, tmp_path, capsys):
    run = package.train(store, out=tmp_path / "run", epsilon=4, population=20_000, **TOY_OPTIONS)
    chosen = preset(epsilon=4, population=20_000)
    assert chosen.sentence() in capsys.readouterr().err
    plan, _ = resolve(chosen=PlanFields(epsilon=4, population=20_000))
    assert run.claim.guarantee == plan.guarantee()
    trained = RunFolder(tmp_path / "run").read_train()["learning"]
    assert (trained["learning_rate"], trained["schedule"]) == (0.002, "constant"), "as measured"


def test_what_is_given_stands_in_place_of_the_presets_choice(store, tmp_path, capsys):
    own = ["--cohort-size", "32", "--delta", "1e-6", "--learning-rate", "0.001", *FEW]
    assert train(store, tmp_path / "run", *own) == 0
    plan = Plan.load(RunFolder(tmp_path / "run").plan)
    assert (plan.denominator, plan.steps, plan.budget.target_delta) == (32, 2, 1e-6)
    assert plan.sampling.group_size == preset(epsilon=4, population=20_000).group_size
    assert RunFolder(tmp_path / "run").read_train()["learning"]["learning_rate"] == 0.001
    said = capsys.readouterr().err
    assert "The preset chose group size 1, clip norm 0.1, without a look" in said


def test_adapters_have_a_learning_rate_of_their_own(store, tmp_path, capsys):
    assert train(store, tmp_path / "run", "--lora-rank", "2", *FEW) == 0
    rate = preset(epsilon=4, population=20_000, low_rank=True).learning_rate
    assert RunFolder(tmp_path / "run").read_train()["learning"]["learning_rate"] == rate
    assert "LoRA only" in capsys.readouterr().err


def test_after_a_look_the_claim_is_conditional_as_that_of_any_plan(store, tmp_path, capsys):
    StoreLedger(store.path).look("stats")
    assert train(store, tmp_path / "run", *FEW) == 0
    assert any("stats" in one.told for one in claim(tmp_path / "run").conditions)
    capsys.readouterr()


def test_what_was_declared_by_the_preset_is_that_run(store, tmp_path, capsys):
    assert train(store, tmp_path / "run", "--declare", *FEW) == 0
    StoreLedger(store.path).look("stats")
    assert train(store, tmp_path / "run", *FEW) == 0
    assert claim(tmp_path / "run").conditions == ()
    capsys.readouterr()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--epsilon", "4"], "--population"),
        (["--population", "20000"], "--epsilon"),
        ([*BUDGET, "--set", "plan.noise_multiplier=1"], "plan.noise_multiplier"),
        ([*BUDGET, "--set", "plan.batch_size=8"], "--cohort-size"),
        ([*BUDGET, "--cohort-size", "20001"], "--cohort-size"),
        (["--epsilon", "0.5", "--population", "100"], "next to nothing"),
        (["--epsilon", "4", "--population", "20"], "--delta"),
    ],
)
def test_what_is_missing_is_named_and_nothing_is_charged(store, tmp_path, capsys, options, named):
    line = ["train", str(store.path), "--out", str(tmp_path / "run"), *TOY, *options]
    assert userdp(line) == 2
    assert named in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "run").exists()
    assert StoreLedger(store.path).charges() == []


def test_a_plan_and_a_budget_exclude_each_other_in_python(store, tmp_path):
    plan, _ = resolve(chosen=PlanFields(epsilon=4, population=20_000))
    with pytest.raises(package.UseError, match="a plan says it all"):
        package.train(store, plan, out=tmp_path / "run", epsilon=4)
    with pytest.raises(package.UseError, match="missing population"):
        package.train(store, out=tmp_path / "run", epsilon=4)
