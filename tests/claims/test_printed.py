"""A loss that is printed beside a model has a price, and whatever tells the claim tells both."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.exports import make_runs
from tests.ledgers import run_with
from tests.plans import els_plan, uls_plan
from userdp import export
from userdp.claims import Claim, claim
from userdp.claims.claim_sentences import SPENT_SO_FAR
from userdp.claims.released_files import STATEMENT
from userdp.claims.verify import verify
from userdp.cli.app import run as command
from userdp.ledger.run_ledger import append_release
from userdp.plans import Plan
from userdp.reporting.facts import read_run
from userdp.reporting.page import render_report, render_summary

PLAN = uls_plan()
LOSS = {
    "split": "train", "loss_bound": 8.3, "epsilon": 50.0, "delta": 0.0, "query_ids": ["a", "b"],
    "model": {"user_loss": 4.75, "standard_error": 0.125, "perplexity": 115.6},
}  # fmt: skip


def finished(folder: Path, *lines: dict, plan: Plan = PLAN) -> Path:
    run = run_with(folder, plan, plan.steps, finished=True)
    for line in lines:
        append_release(run / "ledger.jsonl", line)
    plan.save(run / "plan.json")
    return run


def test_the_claim_stays_the_models_and_the_sum_stands_beside_it(tmp_path):
    told = claim(finished(tmp_path / "run", LOSS, {**LOSS, "epsilon": 0.25, "query_ids": ["c"]}))
    price = PLAN.guarantee()
    assert told.guarantee == price
    assert told.together is not None
    assert told.together.epsilon == pytest.approx(price.epsilon + 50.25, rel=1e-12)
    assert told.together.delta == price.delta
    values = told.to_dict()
    assert [one["epsilon"] for one in values["printed"]] == [50.0, 0.25]
    assert values["together"]["epsilon"] == told.together.epsilon
    json.dumps(values)


def test_where_no_sum_holds_it_is_said(tmp_path):
    told = claim(finished(tmp_path / "run", LOSS, plan=els_plan(fixed_graph=True)))
    assert "no sum" in "".join(told.notes)


def said_of(claimed: Claim) -> str:
    (words,) = claimed.notes
    return words


def test_everything_that_tells_the_claim_tells_both(tmp_path, capsys):
    run = finished(tmp_path / "run", LOSS)
    words = said_of(claim(run))
    assert SPENT_SO_FAR in words
    number = re.search(r"beside it is \(ε ≤ ([\d.]+)", words)
    assert number is not None
    assert float(number[1]) >= 50 + PLAN.guarantee().epsilon
    for line in ("verify", "account --ledger"):
        command([*line.split(), str(run)])
        assert number[1] in capsys.readouterr().out
    facts = read_run(run)
    assert number[1] in render_report([facts])
    assert number[1] in render_report([facts, read_run(finished(tmp_path / "other"))])
    assert number[1] in render_summary(facts)


@pytest.fixture(scope="module")
def shared(tmp_path_factory) -> Path:
    """An export of a run with a loss at ε = 50 in its ledger."""
    folder = make_runs(tmp_path_factory.mktemp("printed"))
    append_release(folder / "run" / "ledger.jsonl", LOSS)
    export(folder / "run", out=folder / "shared")
    return folder / "shared"


def test_an_export_its_card_its_statement_and_verify_tell_both(shared, capsys):
    assert command(["verify", str(shared)]) == 0
    said, told = capsys.readouterr().out, verify(shared).claim
    assert told is not None
    assert told.together is not None
    assert said_of(told) in said
    card = (shared / "README.md").read_text(encoding="utf-8").replace("\\", "")
    assert "the model with the evaluation printed beside it" in card
    stated = json.loads((shared / STATEMENT).read_text())["predicate"]["claim"]
    assert stated["together"]["epsilon"] == pytest.approx(told.together.epsilon, abs=1e-4)
    assert list(stated["printed"].values()) == [50.0]
    assert command(["verify", str(shared), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["claim"]["together"]["epsilon"] > 50
