"""`userdp train` from outside: exit statuses, and nothing half-written."""

import json
import shlex
import shutil
from pathlib import Path

import pytest

from tests.plans import uls_plan
from tests.speed import fast_then_slow
from tests.training.processes import start
from tests.training.toy import attempts, sgd, toy_model, toy_store
from userdp.claims import claim
from userdp.cli.app import run as userdp
from userdp.data.store import UserStore
from userdp.ledger import RunFolder, StoreLedger
from userdp.plans import Plan
from userdp.plans.preset import preset
from userdp.plans.resolved import PlanFields, resolve
from userdp.training.config import TrainConfig, train_config
from userdp.training.private import make_private

PLAN = shlex.split(
    "--population 100 --cohort-size 8 --group-size 2 --steps 3 --l2-clip-norm 1 --delta 1e-5 "
    "--noise-multiplier 2"
)
SET = {
    "noise_multiplier": "plan.noise_multiplier",
    "batch_size": "plan.batch_size",
    "sampling": "sampling.kind",
}
MODEL = shlex.split(
    "--model new --set learning.layers=1 --set learning.width=16 --set learning.heads=2"
)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    return toy_store(tmp_path_factory.mktemp("prepared")).path


@pytest.fixture
def store(prepared, tmp_path) -> UserStore:
    shutil.copytree(prepared, tmp_path / "store")
    return UserStore.open(tmp_path / "store")


def changed(**values: str | None) -> list[str]:
    """`PLAN` with values replaced, or left out for None."""
    options = dict(zip((name[2:].replace("-", "_") for name in PLAN[::2]), PLAN[1::2], strict=True))
    words = []
    for name, value in (options | values).items():
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            words += ["--set", f"{SET[name]}={value}"] if name in SET else [option, value]
    return words


def train(store, out, *options: str) -> int:
    return userdp(["train", str(store.path), "--out", str(out), *options])


@pytest.mark.parametrize("sampling", fast_then_slow(["users", "examples"]))
def test_the_printed_epsilon_is_that_of_the_ledger(store, tmp_path, capsys, sampling):
    size = {"cohort_size": "8"} if sampling == "users" else {"cohort_size": None, "batch_size": "8"}
    plan = changed(sampling=sampling, **size)
    assert train(store, tmp_path / "run", *plan, *MODEL, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    for path in (tmp_path / "run" / "ledger.jsonl", store.path):
        assert result["epsilon"] == claim(path).guarantee.epsilon
    assert result["unit"] == "user"
    assert result["adjacency"] == "add-or-remove"
    assert result["sampling"] == sampling
    assert result["steps"] == 3
    assert Path(result["model"]).is_dir()
    learned = RunFolder(tmp_path / "run").read_train()["learning"]
    assert learned["learning_rate"] == preset(epsilon=4, population=100).learning_rate


def test_a_run_without_privacy_says_so_loudly(store, tmp_path, capsys):
    options = ["--set", "plain.steps=2", "--set", "plain.batch_size=8"]
    assert train(store, tmp_path / "run", *options, *MODEL, "--json") == 0
    printed = capsys.readouterr()
    assert "no protection" in printed.err
    assert json.loads(printed.out)["epsilon"] == "inf"
    assert claim(store.path).guarantee.epsilon == float("inf")


def test_a_run_folder_in_use_is_a_failure_of_status_1(store, tmp_path, capsys):
    model = toy_model(store)
    with make_private(model, sgd(model), store, uls_plan(), out=tmp_path / "run"):
        assert train(store, tmp_path / "run", *changed(), *MODEL) == 1
        assert "in use" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("most_bytes", "what"), [(100, ""), (1100, ".jsonl"), (20_000, "checkpoint")]
)
def test_a_full_disk_is_a_failure_of_status_1_and_the_run_goes_on_when_there_is_space(
    store, tmp_path, most_bytes, what
):
    """At 100 bytes nothing begins; at 1,100 the ledger is full, at 20,000 the first checkpoint."""
    plan = changed(steps="12")
    command = ["train", str(store.path), "--out", str(tmp_path / "run"), *plan, *MODEL]
    process = start(command, most_bytes=most_bytes, stderr=tmp_path / "stderr")
    process.join()
    printed = (tmp_path / "stderr").read_text()
    assert process.exitcode == 1, printed
    assert sum(line.startswith("error:") for line in printed.splitlines()) == 1
    assert what in printed
    assert "Traceback" not in printed
    run = tmp_path / "run"
    assert not list(run.rglob(".partial*"))
    if most_bytes == 100:
        assert not run.exists()
        assert StoreLedger(store.path).charges() == []
    else:
        assert userdp([*command, "--resume"]) == 0
        assert attempts(run) == 12
        assert claim(run / "ledger.jsonl").guarantee == claim(store.path).guarantee


BUDGET, FEW = ["--epsilon", "4", "--population", "20000"], ["--steps", "2"]


def test_a_budget_and_a_population_suffice(store, tmp_path, capsys):
    assert train(store, tmp_path / "run", *BUDGET, *MODEL, "--json") == 0
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


def test_what_is_given_stands_in_place_of_the_presets_choice(store, tmp_path, capsys):
    own = ["--cohort-size", "32", "--delta", "1e-6", "--learning-rate", "0.001", *FEW]
    assert train(store, tmp_path / "run", *BUDGET, *MODEL, *own) == 0
    plan = Plan.load(RunFolder(tmp_path / "run").plan)
    assert (plan.denominator, plan.steps, plan.budget.target_delta) == (32, 2, 1e-6)
    assert plan.sampling.group_size == preset(epsilon=4, population=20_000).group_size
    assert RunFolder(tmp_path / "run").read_train()["learning"]["learning_rate"] == 0.001
    said = capsys.readouterr().err
    assert "The preset chose group size 1, clip norm 0.1, without a look" in said


def test_adapters_have_a_default_rate_of_their_own():
    adapters = preset(epsilon=4, population=100, low_rank=True).learning_rate
    assert adapters == 0.008
    assert TrainConfig(lora_rank=2).learning_rate == adapters
    assert train_config({"lora_rank": 2}).learning_rate == adapters
    assert TrainConfig(lora_rank=2, learning_rate=0.1).learning_rate == 0.1


def test_what_was_declared_by_the_preset_is_that_run(store, tmp_path, capsys):
    assert train(store, tmp_path / "run", *BUDGET, *MODEL, "--declare", *FEW) == 0
    StoreLedger(store.path).look("stats")
    assert train(store, tmp_path / "run", *BUDGET, *MODEL, *FEW) == 0
    assert claim(tmp_path / "run").conditions == ()
    capsys.readouterr()
