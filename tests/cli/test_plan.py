"""`userdp plan` from outside: what it writes is what trains, and every constant has a source."""

import json
from pathlib import Path

import pytest

from tests.data.corpora import prepared
from tests.ledgers import query
from tests.plans_room.conftest import synthetic_norms
from tests.training.toy import cycles
from userdp.accounting.filters import RenyiFilter
from userdp.data.user_store import UserStore
from userdp.ledger import StoreLedger
from userdp.ledger.lines import Answer, OpenBudget
from userdp.ledger.store_ledger import new_id
from userdp.plans import Plan
from userdp.plans.provenance import Provenance


@pytest.fixture
def store(tmp_path) -> Path:
    return prepared(cycles(40), tmp_path / "store").path


@pytest.fixture
def plan(tmp_path, userdp):
    """Runs ``userdp plan`` with norms on 64 gradients a step; its status, and what was printed."""
    synthetic_norms(most=4).save(tmp_path / "norms.json")

    def run(store: Path, *options: object, **changes: object) -> tuple[int, str]:
        values = {"budget": 64, "steps": 50, "epsilon": 4, "population": 1000, "delta": 1e-6}
        values |= {"norms": tmp_path / "norms.json", "out": tmp_path / "plan.json", **changes}
        given = {f"--{name}": value for name, value in values.items() if value is not None}
        words = [word for pair in given.items() for word in pair]
        status, out, err = userdp("plan", store, *words, "--overwrite", *options)
        return status, out if status == 0 and "--json" in options else out + err

    return run


def test_a_dp_answer_that_is_not_taken_is_paid_and_one_that_cannot_be_is_refused(store, plan):
    def answer(line: str, name: str, value: int) -> None:
        query(StoreLedger(store), line, name=name, pure_epsilon=0.1)
        StoreLedger(store).append(Answer(run_id=line, value=value))

    answer("users", "users", 1000)
    answer("examples", "examples", -67_732)
    values = json.loads(plan(store, "--json", population=None)[1])
    assert all(constant["name"] != "population examples" for constant in values["constants"])
    assert values["budget"]["query_epsilon"] == pytest.approx(0.2)
    answer("again", "users", -5)
    status, said = plan(store, population=None)
    assert (status, "DP population must be" in said) == (2, True)


@pytest.mark.pitfall(number=10)
def test_no_population_is_known_until_somebody_says_it(store, plan, tmp_path):
    status, said = plan(store, population=None)
    assert (status, "--epsilon 0.2" in said) == (2, True)
    assert not (tmp_path / "plan.json").exists()


def test_a_plan_from_exact_norms_is_warned_of(store, plan, tmp_path):
    """That the claim of its run names it is asked in tests/ledger/test_claim.py."""
    synthetic_norms(most=4, source=Provenance.NON_PRIVATE).save(tmp_path / "norms.json")
    status, said = plan(store, budget=8, steps=3)
    assert (status, "non-private statistics" in said) == (0, True)


def test_a_plan_reads_no_count_of_the_store(store, plan, tmp_path, monkeypatch):
    """Two stores of different people make the same plan; reading rows is forbidden meanwhile."""
    other = prepared(cycles(12, seed=5), tmp_path / "other").path
    monkeypatch.setattr(UserStore, "open", lambda *_, **__: pytest.fail("the store was opened"))
    one, two = (
        json.loads(plan(path, "--json", "--median-examples", 3)[1])["plan"]
        for path in (store, other)
    )
    assert one == two


@pytest.mark.slow
def test_a_model_is_probed_where_no_norms_are_given_and_its_norms_are_kept(store, plan, tmp_path):
    kept = tmp_path / "kept.json"
    probed = ("--model", "bundled", "--most-noise", 1, "--norms-out", kept)
    values = json.loads(plan(store, "--json", *probed, norms=None)[1])
    assert values["norms"]["source"] == "held-out-users"
    assert values["basis"].startswith("statistics of held-out users")
    norms = [*values["norms"]["user_norms"].values(), values["norms"]["example_norm"]]
    assert min(abs(values["plan"]["clip"]["l2_norm"] / norm - 1) for norm in norms) < 1e-6
    again = json.loads(plan(store, "--json", "--most-noise", 1, norms=kept)[1])
    assert again["plan"] == values["plan"]


FEW = {"budget": 16, "steps": 6, "population": 100, "delta": 1e-5}


def test_under_a_budget_the_plan_says_what_of_it_a_run_takes(store, plan):
    opened = RenyiFilter.opened(epsilon=8.0, delta=1e-5)
    StoreLedger(store).append(OpenBudget(run_id=new_id(), filter=opened))
    query(StoreLedger(store), "q", name="users", pure_epsilon=0.5)
    status, said = plan(store, "--most-noise", 1000, **FEW)
    assert status == 0
    assert "note: of the store's budget " in said
    assert "is added to that" not in said


def test_a_plan_for_hardware_says_what_is_predicted_and_that_it_is(store, plan, tmp_path):
    hardware = ("--hardware", "h100x2", "--model", "bundled")
    assert "PREDICTED for h100x2, not measured" in plan(store, *hardware)[1]
    cost = json.loads(plan(store, *hardware, "--json")[1])["prediction"]["cost"]
    assert [row["method"] for row in cost["methods"]] == ["plain", "batched"]
    predicted = Plan.load(tmp_path / "plan.json")
    assert plan(store)[0] == 0
    assert Plan.load(tmp_path / "plan.json") == predicted, "a prediction changes no plan"
