"""``userdp account``: every option does what it says, or is refused."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.ledgers import begun, query, reserve
from tests.plans import changed_plan, uls_plan
from tests.reporting.conftest import examples_plan, run_maker, users_plan
from tests.speed import fast_then_slow
from userdp.accounting import Accountant, Bracket
from userdp.accounting.accountants import epsilon_by
from userdp.commands import account as module
from userdp.ledger import StoreLedger
from userdp.plans import Plan, StepRecord

STEPS = ["--steps", 2, "--delta", 1e-5]
USERS = ["--sampling", "users", "--sampling-probability", 1, *STEPS]
EXAMPLES = ["--sampling", "examples", "--sampling-probability", 1, "--group-size", 2, *STEPS]
BATCH = ["--sampling", "fixed-batch", "--group-size", 2, "--population", 2, *STEPS]
BATCH += ["--set", "sampling.batch_size=2"]
TOGGLES = (("--accountant", "rdp"), ("--delta", 3e-6))
VALUES = {  # each option of a mechanism with a value that no base has
    "--sampling": "users",
    "--sampling-probability": 0.5,
    "--group-size": 3,
    "--set": "sampling.batch_size=5",
    "--population": 1_000_000,
    "--steps": 4,
    "--noise-multiplier": 7,
    "--delta": 3e-6,
    "--epsilon": 3,
}


def plan_of(plan: Plan, **changes: Any) -> Plan:
    """Everybody in each step: quick to price."""
    return changed_plan(plan, sampling_probability=1.0, **changes)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Ledgers of every kind of claim."""
    folder = tmp_path_factory.mktemp("ledgers")
    make = run_maker(folder)
    # Noise enough for an ε that the distance of the noise from a Gaussian leaves finite.
    graph = plan_of(examples_plan(fixed_graph=True), noise_multiplier=8.0)
    found = {
        "uls": make("uls", plan_of(users_plan())),
        "els": make("els", plan_of(examples_plan())),
        "group privacy": make("gp", plan_of(examples_plan(), accountant=Accountant.GROUP_PRIVACY)),
        "fixed graph": make("graph", graph),
        "plain": make("plain", private=False),
        "interrupted": make("part", plan_of(users_plan()), attempts=1),
        **{name: folder / name for name in ("one run", "two runs", "query")},
    }
    for name, runs in (("one run", 1), ("two runs", 2), ("query", 0)):
        found[name].mkdir()
        for number in range(runs):
            reserve(StoreLedger(found[name]), f"run {number}", plan_of(users_plan()))
    query(StoreLedger(found["query"]), "q", name="users", pure_epsilon=0.5)
    return found


@pytest.fixture
def said(userdp):
    """What the command answers; None where it refuses, which it must do in words."""

    def answer(*options: object) -> dict[str, Any] | None:
        status, out, _ = userdp("account", *options, "--json")
        told = dict(json.loads(out))
        assert status == told.get("status", 0)
        assert status in (0, 2)
        return None if status else told

    return answer


def require_all_heard(said, base: Sequence[object], toggles) -> int:
    """Whatever is added changes the answer or is refused, in all combinations; how many answer."""
    answers: dict[frozenset[int], dict[str, Any] | None] = {}
    for size in range(len(toggles) + 1):
        for chosen in itertools.combinations(range(len(toggles)), size):
            added = [word for number in chosen for word in toggles[number]]
            answers[frozenset(chosen)] = said(*base, *added)
    for chosen, answer in answers.items():
        for number in chosen:
            without = answers[chosen - {number}]
            if answer is not None and without is not None:
                assert answer != without, f"{toggles[number]} is ignored with {base} and {chosen}"
    return sum(answer is not None for answer in answers.values())


KINDS = ["uls", "els", "group privacy", "fixed graph", "plain", "interrupted", "one run"]


@pytest.mark.parametrize("kind", fast_then_slow([*KINDS, "two runs", "query"]))
def test_no_option_is_ignored_beside_a_ledger(kind: str, places, said) -> None:
    answered = require_all_heard(said, ("--ledger", places[kind]), TOGGLES)
    # Where nothing is claimed, or no part has a delta, --delta is refused; and rdp bounds no
    # sampling of a fixed graph.
    assert answered >= {"plain": 1, "two runs": 2, "query": 1, "fixed graph": 2}.get(kind, 4)
    for option, value in VALUES.items():
        if option != "--delta":
            assert said("--ledger", places[kind], option, value) is None


@pytest.mark.parametrize(
    "base", fast_then_slow([USERS, EXAMPLES, BATCH]), ids=["users", "examples", "batch"]
)
def test_no_option_is_ignored_beside_a_mechanism(base, said) -> None:
    whole, budget = (*base, "--noise-multiplier", 3), (*base, "--epsilon", 4)
    # Of batches RDP knows no bound.
    toggles = (("--accountant", "group-privacy"),) if base is BATCH else TOGGLES[:1]
    assert require_all_heard(said, whole, toggles) >= 2
    first, calibrated = said(*whole), said(*budget)
    assert first
    assert calibrated
    for option, value in VALUES.items():
        # A population that bounds no draw is heard in a warning of delta alone.
        if not (option == "--population" and base is not BATCH) and value not in base:
            assert said(*with_option(whole, option, value)) != first, option
            if option != "--noise-multiplier":
                assert said(*with_option(budget, option, value)) != calibrated, option
    for accountant in ("rdp", "group-privacy") if base is not BATCH else ("group-privacy",):
        changed = said(*budget, "--accountant", accountant)
        assert changed is None or changed["accountant"] != calibrated["accountant"]


def with_option(words: Sequence[object], option: str, value: object) -> list[object]:
    """The words with ``option`` set to ``value``, in place of what it was."""
    kept = list(words)
    if option in kept:
        at = kept.index(option)
        del kept[at : at + 2]
    return [*kept, option, value]


def test_a_ledger_is_priced_by_the_accountant_that_is_named(places, said) -> None:
    plan = plan_of(examples_plan())
    for name in ("rdp", "group-privacy", "contour"):
        found = said("--ledger", places["els"], "--accountant", name)
        expected = epsilon_by(Accountant(name), plan.mechanism, plan.budget.target_delta)
        assert (found["epsilon"], found["steps"]) == (expected.upper, plan.steps)
        assert found["accountant"] == expected.accountant == name
    own = said("--ledger", places["group privacy"])
    exact = said("--ledger", places["group privacy"], "--accountant", "contour")
    assert exact["epsilon"] < own["epsilon"]
    assert own["accountant"] == "group-privacy"


def test_what_cannot_be_answered_is_refused_with_a_way_out(places, said, userdp) -> None:
    for kind in ("two runs", "plain", "query"):
        for toggle in (TOGGLES[0], ("--proof",)):
            status, _, err = userdp("account", "--ledger", places[kind], *toggle)
            assert (status, "hint: leave them out" in err) == (2, True)
    whole = (*USERS, "--noise-multiplier", 3)
    assert said(*whole[:-4], "--noise-multiplier", 3, "--epsilon", 1, "--accountant", "rdp") is None


def test_broken_twin_an_account_that_forgets_an_option_is_caught(places, said, monkeypatch) -> None:
    def deaf(accountant: Accountant, mechanism: Any, delta: float) -> Bracket:
        return epsilon_by(Accountant.CONTOUR, mechanism, delta)

    monkeypatch.setattr(module, "epsilon_by", deaf)
    with pytest.raises(AssertionError, match="is ignored"):
        require_all_heard(said, [*USERS, "--noise-multiplier", 3], TOGGLES[:1])


PROVED = ("--sampling-probability", 0.1, "--steps", 100, "--noise-multiplier", 1, "--proof")


@pytest.fixture
def flint() -> None:
    pytest.importorskip("flint", reason="the extra `proof` is not installed")


@pytest.mark.usefixtures("flint")
def test_a_contradicted_accountant_ends_in_a_loud_error(userdp, monkeypatch) -> None:
    too_small = Bracket(lower=7.9, upper=8.0, accountant="contour")
    monkeypatch.setattr(module, "epsilon_by", lambda *_: too_small)  # the truth is 8.0586
    status, out, err = userdp("account", *PROVED, "--delta", 1e-6)
    assert (status, out) == (1, "")
    assert "the proof contradicts the accountant" in err


def test_without_the_library_the_way_to_it_is_told_and_the_rest_works(userdp, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "flint", None)
    status, _, err = userdp("account", *PROVED, "--delta", 1e-6)
    assert (status, "pip install 'userdp[proof]'" in err) == (2, True)
    assert userdp("account", *PROVED[:-1], "--delta", 1e-6)[0] == 0


@pytest.mark.usefixtures("flint")
def test_the_claim_of_a_runs_ledger_is_proven_for_all_steps_of_its_plan(said, tmp_path) -> None:
    plan = uls_plan()
    ledger = begun(tmp_path / "ledger.jsonl", plan, run_id="one")
    for _ in range(3):
        ledger.attempt(StepRecord.of_plan(plan))
    ledger.close()
    result = said("--ledger", tmp_path, "--proof")
    assert result["proof"]["proven"]
    assert result["proof"]["epsilon"] == result["epsilon"] == plan.guarantee().epsilon
