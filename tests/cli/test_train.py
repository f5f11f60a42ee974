"""`userdp train` from outside: exit statuses, and nothing half-written."""

import json
import shlex
import shutil
from pathlib import Path

import pytest

from tests.ledgers import forget
from tests.plans import uls_plan
from tests.speed import fast_then_slow
from tests.training.processes import start
from tests.training.toy import attempts, sgd, toy_model, toy_store
from userdp.claims import claim
from userdp.cli.app import run as userdp
from userdp.data.store import UserStore
from userdp.ledger import StoreLedger
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
MODEL = [
    "--model",
    "new",
    "--set",
    "learning.layers=1",
    "--set",
    "learning.width=16",
    "--set",
    "learning.heads=2",
]


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


@pytest.mark.slow
def test_a_plan_file_and_options_make_the_same_run(store, tmp_path, capsys):
    plan = uls_plan(cohort_size=8, group_size=2, steps=3, l2_clip_norm=1.0)
    plan.save(tmp_path / "plan.json")
    assert train(store, tmp_path / "a", "--plan", str(tmp_path / "plan.json"), *MODEL) == 0
    forget(store.path)  # the second would inherit what the first released
    assert train(store, tmp_path / "b", *changed(), *MODEL) == 0
    for name in ("a", "b"):
        assert claim(tmp_path / name / "ledger.jsonl").guarantee == plan.guarantee()
    assert "epsilon" in capsys.readouterr().out


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


def test_a_finished_run_is_not_resumed(store, tmp_path, capsys):
    assert train(store, tmp_path / "run", *changed(), *MODEL) == 0
    assert train(store, tmp_path / "run", "--resume") == 2
    assert "finished" in capsys.readouterr().err
    assert attempts(tmp_path / "run") == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("most_bytes", "what"), [(100, ""), (1500, ".jsonl"), (20_000, "checkpoint")]
)
def test_a_full_disk_is_a_failure_of_status_1_and_the_run_goes_on_when_there_is_space(
    store, tmp_path, most_bytes, what
):
    """At 100 bytes nothing begins; at 1,500 the logs fill up, at 20,000 a checkpoint."""
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
