"""``userdp account``: every option does what it says, or is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.claims.lives import Teller
from tests.ledgers import query, reserve
from tests.plans import changed_plan
from tests.reporting.conftest import run_maker, users_plan
from tests.speed import fast_then_slow
from userdp.accounting import Accountant, Bracket
from userdp.accounting.accountants import epsilon_by
from userdp.claims import claim
from userdp.commands import account as module
from userdp.core.codec import plain
from userdp.ledger import StoreLedger

STEPS = ["--steps", 2, "--delta", 1e-5]
USERS = ["--sampling", "users", "--sampling-probability", 1, *STEPS]
EXAMPLES = ["--sampling", "examples", "--sampling-probability", 1, "--group-size", 2, *STEPS]
BATCH = ["--sampling", "fixed-batch", "--group-size", 2, "--population", 2, *STEPS]
BATCH += ["--set", "sampling.batch_size=2"]
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
    "--accountant": "group-privacy",
}


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Ledgers of claims with a delta, without one, and of nothing."""
    folder = tmp_path_factory.mktemp("ledgers")
    # Everybody in each step: quick to price.
    plan = changed_plan(users_plan(), sampling_probability=1.0)
    make = run_maker(folder)
    found = {"run": make("run", plan), "plain": make("plain", private=False)}
    for name in ("two runs", "query"):
        found[name] = folder / name
        found[name].mkdir()
    for number in range(2):
        reserve(StoreLedger(found["two runs"]), f"run {number}", plan)
    query(StoreLedger(found["query"]), "q", name="users", pure_epsilon=0.5)
    return found


@pytest.fixture
def said():
    """What the command answers; None where it refuses, which it must do in words."""

    def answer(*options: object) -> dict[str, Any] | None:
        status, told = Teller()("account", *options)
        assert status == told.get("status", 0)
        assert status in (0, 2)
        return None if status else told

    return answer


def require_all_heard(said, base: list[object]) -> None:
    """Whatever is said of a mechanism, or of its budget, changes the answer or is refused."""
    for whole in ([*base, "--noise-multiplier", 3], [*base, "--epsilon", 4]):
        first = said(*whole)
        assert first
        for option, value in VALUES.items():
            # A population that bounds no draw is heard in a warning of delta alone.
            if value not in base and (option != "--population" or base is BATCH):
                assert said(*with_option(whole, option, value)) != first, f"{option} is ignored"


def with_option(words: list[object], option: str, value: object) -> list[object]:
    """The words with ``option`` set to ``value``, in place of what it was."""
    kept = list(words)
    if option in kept:
        at = kept.index(option)
        del kept[at : at + 2]
    return [*kept, option, value]


@pytest.mark.parametrize("kind", ["run", "two runs", "plain", "query"])
def test_a_ledger_is_answered_by_its_claim_and_no_option_beside_it_is_ignored(
    kind: str, places, said
) -> None:
    told = claim(places[kind])
    whole, at_delta = (said("--ledger", places[kind], *more) for more in ((), ("--delta", 3e-6)))
    assert whole == plain(told)
    # Where nothing is claimed, or nothing has a delta, --delta is refused.
    assert (at_delta is None) == (kind in ("plain", "query"))
    assert at_delta is None or at_delta["delta"] == 3e-6
    for option, value in VALUES.items():
        if option != "--delta":
            assert said("--ledger", places[kind], option, value) is None
    assert said("--ledger", places[kind], "--proof") is None


def test_a_large_delta_is_warned_of_beside_a_ledger_too(places, userdp) -> None:
    status, _, err = userdp("account", "--ledger", places["run"], "--delta", 0.5)
    assert status == 0
    assert "delta = 0.5 is not below 1/n" in err


@pytest.mark.parametrize(
    "base", fast_then_slow([USERS, EXAMPLES, BATCH]), ids=["users", "examples", "batch"]
)
def test_no_option_is_ignored_beside_a_mechanism(base, said) -> None:
    require_all_heard(said, base)


def test_broken_twin_an_account_that_forgets_an_option_is_caught(said, monkeypatch) -> None:
    def deaf(accountant: Accountant, mechanism: Any, delta: float) -> Bracket:
        return epsilon_by(Accountant.CONTOUR, mechanism, delta)

    monkeypatch.setattr(module, "epsilon_by", deaf)
    with pytest.raises(AssertionError, match="--accountant is ignored"):
        require_all_heard(said, EXAMPLES)


PROVED = ("--sampling-probability", 0.1, "--steps", 100, "--noise-multiplier", 1, "--proof")


def test_the_epsilon_of_a_mechanism_and_the_delta_of_one_are_proven(said) -> None:
    pytest.importorskip("flint", reason="the extra `proof` is not installed")
    for known in (("--delta", 1e-6), ("--epsilon", 8)):
        assert said(*PROVED, *known)["proof"]["proven"]


def test_the_least_noise_is_printed_so_that_it_can_be_copied(userdp) -> None:
    """Rounded to five digits it was over the budget: 4.0001."""
    asked = ("account", "--sampling-probability", 1, "--steps", "1", "--delta", 1e-6)
    _, told, _ = userdp(*asked, "--epsilon", "4.")
    noise = told.split("noise multiplier")[1].split()[0]
    assert "epsilon 4.0000 " in userdp(*asked, "--noise-multiplier", noise)[1]
