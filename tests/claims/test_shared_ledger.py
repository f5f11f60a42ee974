"""Stores of the same people share a ledger, in a folder that holds other things too."""

import json
import math

import pytest

from tests.claims.lives import LEARNING, PLAN, SHAPE, Teller
from tests.training.toy import cycles


@pytest.fixture
def people(tmp_path):
    """Two stores beside ``people.jsonl``, their shared ledger, and a plan."""
    lines = [
        {"user": user.decode(), "text": text} for user, all_ in cycles(20).items() for text in all_
    ]
    (tmp_path / "mail.jsonl").write_text("\n".join(map(json.dumps, lines)))
    PLAN.save(tmp_path / "plan.json")
    for name in ("a", "b"):
        Teller().done(
            "prepare", tmp_path / "mail.jsonl", "--out", tmp_path / name, "--seq-len", 8,
            "--ledger", tmp_path / "people.jsonl",
        )  # fmt: skip
    return tmp_path


def train(people, store, run):
    return Teller().done(
        "train", people / store, "--plan", people / "plan.json", "--out", people / "runs" / run,
        "--model", "new", *SHAPE, *LEARNING,
    )  # fmt: skip


def test_a_budget_may_be_opened_before_anything_was_charged(people):
    Teller().done("store", "budget", people / "a", "--epsilon", 8, "--delta", 1e-6)
    assert Teller().done("store", "budget", people / "b")["epsilon"] == 8


def test_runs_lie_beside_a_shared_ledger(people):
    """``--out runs/one`` in the folder of ``people.jsonl`` is where tutorials put runs."""
    (people / "runs").mkdir()
    (people / "runs" / "notes.txt").write_text("12")
    one = PLAN.guarantee().epsilon
    assert math.isclose(train(people, "a", "one")["epsilon"], one)
    assert math.isclose(train(people, "b", "two")["epsilon"], 2 * one)
    tell = Teller()
    for command in (("store", "budget"), ("store", "stats"), ("account", "--ledger")):
        tell.done(*command, people / "b")
    assert math.isclose(tell.epsilon(people / "people.jsonl")[0], 2 * one)
    assert tell.done("verify", people / "runs" / "two")["ok"]
