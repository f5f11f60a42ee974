"""``userdp account``: every option does what it says, or is refused."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.ledgers import query, reserve
from tests.plans import changed_plan
from tests.reporting.conftest import examples_plan, run_maker, users_plan
from tests.speed import fast_then_slow
from userdp.accounting import Accountant
from userdp.accounting.accountants import epsilon_by
from userdp.claims import claim
from userdp.cli.app import run as userdp
from userdp.ledger import StoreLedger
from userdp.plans import Plan

STEPS = ["--steps", "2", "--delta", "1e-5"]
USERS = ["--sampling", "users", "--sampling-probability", "1", *STEPS]
EXAMPLES = ["--sampling", "examples", "--sampling-probability", "1", "--group-size", "2", *STEPS]
BATCH = ["--sampling", "fixed-batch", "--set", "sampling.batch_size=2", "--population", "2", *STEPS]
BUDGET = ["--epsilon", "4"]
TOGGLES = (["--accountant", "rdp"], ["--curve"], ["--delta", "3e-6"])
VALUES = {  # each option of a mechanism with a value that no base has
    "--sampling": "users",
    "--sampling-probability": "0.5",
    "--group-size": "3",
    "--set": "sampling.batch_size=5",
    "--population": "1000000",
    "--steps": "4",
    "--noise-multiplier": "7",
    "--delta": "3e-6",
    "--epsilon": "3",
}


def plan_of(plan: Plan, **changes: Any) -> Plan:
    """Everybody in each step: quick to price."""
    return changed_plan(plan, sampling_probability=1.0, **changes)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Ledgers of every kind of claim."""
    folder = tmp_path_factory.mktemp("ledgers")
    make = run_maker(folder)
    group = plan_of(examples_plan(), accountant=Accountant.GROUP_PRIVACY)
    # Noise enough for an ε that the distance of the noise from a Gaussian leaves finite.
    graph = plan_of(examples_plan(fixed_graph=True), noise_multiplier=8.0)
    found = {
        "uls": make("uls", plan_of(users_plan())),
        "els": make("els", plan_of(examples_plan())),
        "group privacy": make("gp", group),
        "fixed graph": make("graph", graph),
        "plain": make("plain", private=False),
        "interrupted": make("part", plan_of(users_plan()), attempts=1),
    }
    for name, plans in (("one run", [users_plan()]), ("two runs", [users_plan(), users_plan()])):
        found[name] = folder / name
        found[name].mkdir()
        ledger = StoreLedger(found[name])
        for number, plan in enumerate(plans):
            reserve(ledger, f"run {number}", plan_of(plan))
    found["query"] = folder / "query"
    found["query"].mkdir()
    query(StoreLedger(found["query"]), "q", name="users", pure_epsilon=0.5)
    return found


def said(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> dict[str, Any] | None:
    """What a command answers; None where it refuses, which it must do in words."""
    status = userdp([*arguments, "--json"])
    told = dict(json.loads(capsys.readouterr().out))
    if status:
        assert status == told["status"] == 2
        assert told["error"]
        return None
    return told


def require_all_heard(
    capsys: pytest.CaptureFixture[str], base: list[str], toggles: tuple[list[str], ...]
) -> int:
    """Whatever is added changes the answer or is refused, in all combinations; how many answer."""
    answers: dict[frozenset[int], dict[str, Any] | None] = {}
    for size in range(len(toggles) + 1):
        for chosen in itertools.combinations(range(len(toggles)), size):
            added = [word for number in chosen for word in toggles[number]]
            answers[frozenset(chosen)] = said(capsys, ["account", *base, *added])
    for chosen, answer in answers.items():
        for number in chosen:
            without = answers[chosen - {number}]
            if answer is not None and without is not None:
                assert answer != without, f"{toggles[number]} is ignored with {base} and {chosen}"
    return sum(answer is not None for answer in answers.values())


KINDS = ["uls", "els", "group privacy", "fixed graph", "plain", "interrupted", "one run"]


@pytest.mark.parametrize("kind", fast_then_slow([*KINDS, "two runs", "query"]))
def test_no_option_is_ignored_beside_a_ledger(kind: str, places, capsys) -> None:
    answered = require_all_heard(capsys, ["--ledger", str(places[kind])], TOGGLES)
    # Where nothing is claimed, or no part has a delta, --delta is refused.
    assert answered >= {"plain": 1, "two runs": 2, "query": 1}.get(kind, 4)
    for option, value in VALUES.items():
        if option != "--delta":
            assert said(capsys, ["account", "--ledger", str(places[kind]), option, value]) is None


@pytest.mark.parametrize(
    "base", fast_then_slow([USERS, EXAMPLES, BATCH]), ids=["users", "examples", "batch"]
)
def test_no_option_is_ignored_beside_a_mechanism(base, capsys) -> None:
    whole = [*base, "--noise-multiplier", "3"]
    toggles = TOGGLES[:2] if base is not BATCH else TOGGLES[:1]  # a slow curve
    assert require_all_heard(capsys, whole, toggles) >= 2
    first = said(capsys, ["account", *whole])
    calibrated = said(capsys, ["account", *base, *BUDGET])
    assert first is not None
    assert calibrated is not None
    # A population that bounds no draw is heard in a warning of delta alone.
    for option, value in VALUES.items():
        if option == "--population" and base is not BATCH:
            continue
        if not (option == "--sampling" and value in base):
            assert said(capsys, ["account", *with_option(whole, option, value)]) != first, option
        if option != "--noise-multiplier" and not (option == "--sampling" and value in base):
            changed = said(capsys, ["account", *with_option([*base, *BUDGET], option, value)])
            assert changed != calibrated, option
    for accountant in ("rdp", "group-privacy") if base is not BATCH else ("rdp",):
        changed = said(capsys, ["account", *base, *BUDGET, "--accountant", accountant])
        assert changed is None or changed["accountant"] != calibrated["accountant"]


def with_option(arguments: list[str], option: str, value: str) -> list[str]:
    """The arguments with ``option`` set to ``value``, in place of what it was."""
    kept = list(arguments)
    if option in kept:
        at = kept.index(option)
        del kept[at : at + 2]
    return [*kept, option, value]


def test_a_ledger_is_priced_by_the_accountant_that_is_named(places, capsys) -> None:
    path = places["els"]
    plan = plan_of(examples_plan())
    for name in ("rdp", "group-privacy", "contour"):
        found = said(capsys, ["account", "--ledger", str(path), "--accountant", name])
        expected = epsilon_by(Accountant(name), plan.mechanism, plan.budget.target_delta)
        assert found is not None
        assert found["epsilon"] == expected.upper
        assert found["accountant"] == expected.accountant == name
        assert found["steps"] == plan.steps
    own = said(capsys, ["account", "--ledger", str(places["group privacy"])])
    exact = said(
        capsys, ["account", "--ledger", str(places["group privacy"]), "--accountant", "contour"]
    )
    assert exact["epsilon"] < own["epsilon"]
    assert own["accountant"] == "group-privacy"


def test_the_curve_of_a_ledger_is_that_of_its_whole_plan(places, capsys) -> None:
    found = said(capsys, ["account", "--ledger", str(places["interrupted"]), "--curve"])
    assert found is not None
    mechanism = claim(places["interrupted"]).mechanism
    assert mechanism is not None
    assert mechanism.steps == users_plan().steps
    middle = len(found["curve"]["epsilon"]) // 2
    epsilon, delta = found["curve"]["epsilon"][middle], found["curve"]["delta"][middle]
    assert delta == mechanism.delta(epsilon).upper
    assert userdp(["account", "--ledger", str(places["interrupted"]), "--curve"]) == 0
    assert "largest true positive rate" in capsys.readouterr().out


def test_what_a_composed_claim_cannot_answer_is_refused_with_a_way_out(places, capsys) -> None:
    for kind in ("two runs", "plain", "query"):
        for toggle in TOGGLES[:2]:
            assert userdp(["account", "--ledger", str(places[kind]), *toggle]) == 2
            err = capsys.readouterr().err
            assert "hint: leave them out" in err
    assert said(capsys, ["account", *USERS, "--noise-multiplier", "3", "--curve",
                         "--accountant", "rdp"]) is None  # fmt: skip


def test_broken_twin_an_account_that_forgets_an_option_is_caught(
    places, capsys, monkeypatch
) -> None:
    from userdp.commands.account import Priced

    def deaf(priced: Priced) -> dict[str, Any]:
        return {key: value for key, value in priced.values.items() if key != "curve"}

    monkeypatch.setattr(Priced, "to_dict", deaf)
    with pytest.raises(AssertionError, match="is ignored"):
        require_all_heard(capsys, ["--ledger", str(places["interrupted"])], (["--curve"],))
