"""`userdp account --proof`: the claim, its refusals and what it does without the library."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

pytest.importorskip("flint", reason="the extra `proof` is not installed")

from tests.ledgers import begun
from tests.plans import uls_plan
from userdp.accounting import Bracket
from userdp.cli.app import run
from userdp.commands import account as account_module
from userdp.plans import StepRecord

USERS = ["--sampling", "users", "--sampling-probability", "0.1", "--steps", "100"]
MECHANISM = [*USERS, "--noise-multiplier", "1"]


def userdp(capsys, *arguments: str) -> tuple[int, str, str]:
    status = run(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


@pytest.mark.slow
def test_the_claim_is_proven_beside_the_epsilon(capsys):
    status, out, _ = userdp(capsys, "account", *MECHANISM, "--delta", "1e-6", "--proof", "--json")
    result = json.loads(out)
    proof = result["proof"]
    assert status == 0
    assert proof["proven"]
    assert proof["epsilon"] == result["epsilon"]
    assert proof["delta_lower"] <= proof["delta_upper"] <= 1e-6
    assert proof["epsilon_lower_bound"]["proven"]
    assert proof["bits"] >= 128
    assert "not that it dominates" in proof["scope"]
    status, out, _ = userdp(capsys, "account", *MECHANISM, "--delta", "1e-6", "--proof")
    assert status == 0
    assert "not that it dominates" in out


def test_a_given_epsilon_is_enclosed_too(capsys):
    status, out, _ = userdp(capsys, "account", *MECHANISM, "--epsilon", "1", "--proof", "--json")
    result = json.loads(out)
    assert status == 0
    assert result["proof"]["remove"][0] <= 0.2075268521031497 <= result["proof"]["remove"][1]
    assert result["delta_lower_bound"] <= 0.2075268521031497 <= result["delta"]
    assert userdp(capsys, "account", *MECHANISM, "--epsilon", "1", "--delta", "0.1")[0] == 2


def test_a_contradicted_accountant_ends_in_a_loud_error(capsys, monkeypatch):
    def too_small(*ignored: object) -> Bracket:
        return Bracket(lower=7.9, upper=8.0, accountant="contour")

    monkeypatch.setattr(account_module, "epsilon_by", too_small)  # the truth is 8.0586
    status, out, err = userdp(capsys, "account", *MECHANISM, "--delta", "1e-6", "--proof")
    assert status == 1
    assert not out
    assert "the proof contradicts the accountant" in " ".join(err.split())


def test_without_the_library_the_way_to_it_is_told_and_the_rest_works(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "flint", None)
    status, _, err = userdp(capsys, "account", *MECHANISM, "--delta", "1e-6", "--proof")
    assert status == 2
    assert "pip install 'userdp[proof]'" in err
    assert userdp(capsys, "account", *MECHANISM, "--delta", "1e-6")[0] == 0


def test_the_claim_of_a_runs_ledger_is_proven_for_all_steps_of_its_plan(capsys, tmp_path: Path):
    plan = uls_plan()
    ledger = begun(tmp_path / "ledger.jsonl", plan, run_id="one")
    for _ in range(3):
        ledger.attempt(StepRecord.of_plan(plan))
    ledger.close()
    status, out, _ = userdp(capsys, "account", "--ledger", str(tmp_path), "--proof", "--json")
    result = json.loads(out)
    assert status == 0
    assert result["proof"]["proven"]
    assert result["proof"]["epsilon"] == result["epsilon"] == plan.guarantee().epsilon
