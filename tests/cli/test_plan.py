"""`userdp plan` from outside: what it writes is what trains, and every constant has a source."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.data.corpora import ListSource, interleaved
from tests.ledgers import query
from tests.plans_room.conftest import synthetic_norms
from tests.training.toy import cycles
from userdp.cli.app import run as userdp
from userdp.data.prepare import prepare_store
from userdp.data.tokenize import StoreTokenizer
from userdp.ledger import StoreLedger
from userdp.ledger.lines import Answer, OpenBudget
from userdp.ledger.store import new_id
from userdp.plans import Plan
from userdp.plans.origin import Provenance

BUNDLED = Path(sys.modules["userdp"].__file__).parent / "assets/base-model/tokenizer.json"


@pytest.fixture
def store(tmp_path) -> Path:
    prepare_store(
        ListSource(interleaved(cycles(40))),
        tmp_path / "store",
        tokenizer=StoreTokenizer.load(BUNDLED),
        seq_len=8,
        held_out_users=0.2,
        held_out_examples=0.1,
    )
    return tmp_path / "store"


@pytest.fixture
def norms(tmp_path) -> Path:
    synthetic_norms(most=4).save(tmp_path / "norms.json")
    return tmp_path / "norms.json"


def plan(store: Path, *options: str, **changes: str | None) -> int:
    values = {
        "budget": "64",
        "steps": "50",
        "epsilon": "4",
        "norms": str(store.parent / "norms.json"),
        "population": "1000",
        "delta": "1e-6",
        "out": str(store.parent / "plan.json"),
        **changes,
    }
    flags = [
        part
        for key, value in values.items()
        if value is not None
        for part in (f"--{key.replace('_', '-')}", value)
    ]
    return userdp(["plan", str(store), *flags, "--overwrite", *options])


def test_a_dp_answer_that_is_not_taken_is_paid_and_one_that_cannot_be_is_refused(
    store, norms, capsys
):
    for name, value in (("users", 1000), ("examples", -67_732)):
        query(StoreLedger(store), name, name=name, pure_epsilon=0.1)
        StoreLedger(store).append(Answer(run_id=name, value=value))
    assert plan(store, "--json", population=None) == 0
    values = json.loads(capsys.readouterr().out)
    assert all(constant["name"] != "population examples" for constant in values["constants"])
    assert values["budget"]["query_epsilon"] == pytest.approx(0.2)
    query(StoreLedger(store), "again", name="users", pure_epsilon=0.1)
    StoreLedger(store).append(Answer(run_id="again", value=-5))
    assert plan(store, population=None) == 2
    assert "DP population must be" in capsys.readouterr().err


@pytest.mark.pitfall(number=10)
def test_no_population_is_known_until_somebody_says_it(store, norms, capsys):
    assert plan(store, population=None) == 2
    printed = capsys.readouterr().err
    assert "--epsilon 0.2" in printed.replace("\n", " ")
    assert not (store.parent / "plan.json").exists()


@pytest.mark.slow
def test_what_is_not_private_is_said_in_plan_warning_and_report(store, norms, tmp_path, capsys):
    synthetic_norms(most=4, source=Provenance.NON_PRIVATE).save(norms)
    assert plan(store, budget="8", steps="3") == 0
    assert "non-private statistics" in capsys.readouterr().err
    run = tmp_path / "run"
    command = ["train", str(store), "--out", str(run), "--plan", str(tmp_path / "plan.json")]
    assert userdp([*command, "--model", "bundled"]) == 0
    assert userdp(["report", str(run), "--out", str(tmp_path / "report.html")]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "what its plan was chosen from (gradient norms, l2 clip norm) says nothing" in page


def test_a_plan_reads_no_count_of_the_store(store, norms, tmp_path, capsys, monkeypatch):
    """Two stores of different people make the same plan; reading rows is forbidden meanwhile."""
    from userdp.data.store import UserStore

    def forbidden(*arguments, **options):
        raise AssertionError("the store was opened")

    prepare_store(
        ListSource(interleaved(cycles(12, seed=5))),
        tmp_path / "other",
        tokenizer=StoreTokenizer.load(BUNDLED),
        seq_len=8,
        held_out_users=0.1,
        held_out_examples=0.1,
    )
    monkeypatch.setattr(UserStore, "open", forbidden)
    plans = []
    for path in (store, tmp_path / "other"):
        assert plan(path, "--json", norms=str(norms), median_examples="3") == 0
        plans.append(json.loads(capsys.readouterr().out)["plan"])
    assert plans[0] == plans[1]


@pytest.mark.slow
def test_planning_imports_neither_torch_nor_transformers(store, norms, tmp_path):
    code = (
        "import sys; from userdp.cli.app import run; status = run(sys.argv[1:]); "
        "print(sorted({'torch', 'transformers'} & set(sys.modules)), file=sys.stderr); "
        "sys.exit(status)"
    )
    arguments = ["plan", str(store), "--budget", "4", "--steps", "2", "--epsilon", "4"]
    arguments += ["--norms", str(norms), "--population", "1000", "--out", str(tmp_path / "p.json")]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip().endswith("[]")


@pytest.mark.slow
def test_a_model_is_probed_where_no_norms_are_given(store, tmp_path, capsys):
    assert plan(store, "--json", norms=None, model="bundled", most_noise="1") == 0
    values = json.loads(capsys.readouterr().out)
    assert values["norms"]["source"] == "held-out-users"
    assert values["basis"].startswith("statistics of held-out users")
    norms = [
        *values["norms"]["user_norms"].values(),
        values["norms"]["example_norm"],
    ]
    assert min(abs(values["plan"]["clip"]["l2_norm"] / norm - 1) for norm in norms) < 1e-6


def test_repeat_declares_a_series_and_makes_epsilon_that_of_all_runs(store, norms, tmp_path):
    path = tmp_path / "plan.json"
    options = ("--budget", 16, "--steps", 6, "--epsilon", 4, "--population", 100, "--delta", 1e-5)
    common = ("plan", store, "--norms", norms, *options, "--most-noise", 1000)
    assert userdp([*map(str, (*common, "--repeat", 3, "--out", path))]) == 0
    [declared] = StoreLedger(store).history().series.values()
    plan = Plan.load(path)
    assert declared.series.holds(plan)
    assert 3.99 < declared.series.guarantee().epsilon <= 4
    assert plan.guarantee().epsilon < 3
    assert userdp([*map(str, (*common, "--repeat", 3, "--out", tmp_path / "again.json"))]) == 0
    assert len(StoreLedger(store).history().series) == 1, "declared again, it is the same series"


def test_under_a_budget_the_plan_says_what_of_it_a_run_takes(store, norms, tmp_path, capsys):
    from userdp.accounting.filters import RenyiFilter

    StoreLedger(store).append(
        OpenBudget(run_id=new_id(), filter=RenyiFilter.opened(epsilon=8.0, delta=1e-5))
    )
    query(StoreLedger(store), "q", name="users", pure_epsilon=0.5)
    options = ("--budget", 16, "--steps", 6, "--epsilon", 4, "--population", 100, "--delta", 1e-5)
    common = ("plan", store, "--norms", norms, *options, "--most-noise", 1000)
    assert userdp([*map(str, (*common, "--out", tmp_path / "plan.json"))]) == 0
    said = capsys.readouterr().out
    assert "note: the store has a budget of epsilon 8, of which " in said
    assert "is added to that" not in said
    assert userdp([*map(str, (*common, "--repeat", 3, "--out", tmp_path / "series.json"))]) == 2
    assert "a second way to pay" in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "series.json").exists()


def test_a_plan_for_hardware_says_what_is_predicted_and_that_it_is(store, norms, capsys):
    hardware = ("--hardware", "h100x2", "--model", "bundled")
    assert plan(store, *hardware) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "PREDICTED for h100x2, not measured" in shown
    assert plan(store, *hardware, "--json") == 0
    cost = json.loads(capsys.readouterr().out)["prediction"]["cost"]
    assert [row["method"] for row in cost["methods"]] == ["plain", "batched"]
    without = Plan.load(store.parent / "plan.json")
    assert plan(store) == 0
    assert Plan.load(store.parent / "plan.json") == without, "a prediction changes no plan"
