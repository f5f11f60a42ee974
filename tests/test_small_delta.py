"""A δ that says little is refused before training, everywhere, unless it is asked for by name."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path

import pytest

from tests.plans import els_plan, uls_plan
from tests.training.toy import private_run, sgd, toy_model, toy_store
from userdp.cli.app import run as userdp
from userdp.core.codec import encode
from userdp.core.errors import UseError
from userdp.data.user_store import UserStore
from userdp.ledger import StoreLedger
from userdp.plans.proposal import Proposal, declared_users
from userdp.plans.small_delta import (
    DeltaSize,
    plan_with_small_delta,
    rule_of,
    size_of,
)
from userdp.training.private_run import make_private

LARGE, MIDDLE = 0.01, 0.008  # of 100: 1/n and above n^-1.1 = 0.0063


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> UserStore:
    return toy_store(tmp_path_factory.mktemp("small-delta"))


@pytest.mark.parametrize("n", [2, 3, 49, 100, 1000, 10**6, 10**12 - 1])
def test_one_over_n_is_too_large_and_the_next_number_below_is_not(n: int) -> None:
    assert size_of(1 / n, n) is DeltaSize.TOO_LARGE
    assert size_of(1 / n * (1 - 1e-9), n) is DeltaSize.ABOVE_RULE
    assert size_of(rule_of(n) * (1 - 1e-12), n) is DeltaSize.WITHIN_RULE
    for delta in (0.0, 1.0, math.nan):
        with pytest.raises(UseError):
            size_of(delta, n)


def test_examples_stand_for_users_where_no_users_are_declared() -> None:
    """Below 1/examples is below 1/users; a number of users, if it is declared, decides."""
    plan = els_plan(target_delta=1 / 400)
    with pytest.raises(UseError, match="400 examples"):
        plan_with_small_delta(plan)
    assert "above the rule" in str(plan_with_small_delta(plan, users=300))
    assert plan_with_small_delta(plan, users=100) is None
    with pytest.raises(UseError, match="500 users"):
        plan_with_small_delta(plan, users=500)


def test_make_private_refuses_before_it_charges_and_warns_in_between(store, tmp_path) -> None:
    model = toy_model(store)
    large = uls_plan(target_delta=LARGE)
    with pytest.raises(UseError, match="not below 1/n"):
        make_private(model, sgd(model), store, large, out=tmp_path / "a")
    assert StoreLedger(store.path).charges() == []
    with (
        pytest.warns(UserWarning, match="above the rule"),
        make_private(model, sgd(model), store, uls_plan(target_delta=MIDDLE), out=tmp_path / "b"),
    ):
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        private_run(
            model, sgd(model), store, large, out=tmp_path / "c", allow_large_delta=True
        ).close()
        make_private(model, sgd(model), store, large, out=tmp_path / "c", resume=True).close()
        make_private(model, sgd(model), store, uls_plan(), out=tmp_path / "d").close()


def train_words(store: UserStore, out: Path, *more: str) -> list[str]:
    words = (
        "--model new --set learning.layers=1 --set learning.width=16 --set learning.heads=2 "
        "--learning-rate 0.02"
    )
    return ["train", str(store.path), "--out", str(out), *words.split(), *more]


@pytest.mark.slow
def test_a_plan_file_with_a_number_of_users_is_judged_by_it(store, tmp_path, capsys) -> None:
    plan = els_plan(target_delta=1 / 400)
    constants = [{"name": "population", "value": 100, "origin": "declared", "query_id": None}]
    values = {"schema": Proposal.schema, "plan": encode(plan), "basis": "x", "constants": constants}
    (tmp_path / "proposal.json").write_text(json.dumps(values))
    plan.save(tmp_path / "bare.json")
    assert declared_users(tmp_path / "proposal.json") == 100
    assert declared_users(tmp_path / "bare.json") is None
    for name, status in (("bare", 2), ("proposal", 0)):
        words = train_words(store, tmp_path / name, "--plan", str(tmp_path / f"{name}.json"))
        assert userdp(words) == status, capsys.readouterr().err
    sweep = ["tune", str(store.path), "--out", str(tmp_path / "sweep"), "--tuning", "composition"]
    sweep += ["--plan", str(tmp_path / "bare.json"), "--learning-rate", "0.1", "0.2"]
    capsys.readouterr()
    assert userdp(sweep) == 2
    assert "not below 1/n" in capsys.readouterr().err
