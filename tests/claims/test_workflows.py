"""The commands of README and docs, in their order, and what each printed claim is by hand.

The commands are read from the pages themselves; only numbers, and what a machine of two cores
cannot do in minutes, are exchanged. By hand means: parts are listed here as they are paid, and
summed; what a part costs comes from the mechanism that was asked for.
"""

from __future__ import annotations

import json
import math
import random
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.claims.lives import Teller
from userdp.core.vocabulary import round_up
from userdp.plans import Plan

ROOT = Path(__file__).parents[2]
SMALLER = {
    "20000": "2000",
    "256": "4",
    "--group-size 8": "--group-size 2",
    "--steps 500": "--steps 3",
    "--delta 1e-6": "--delta 1e-5",
}


def commands(page: str, heading: str) -> list[list[str]]:
    """Those of the first console block under a heading, without their comments, made smaller."""
    text = (ROOT / page).read_text(encoding="utf-8")
    block = text.split(heading, 1)[1].split("```console\n", 1)[1].split("```", 1)[0]
    block = block.replace("\\\n", " ")
    for large, small in SMALLER.items():
        block = re.sub(rf"(?<!\S){re.escape(large)}(?!\S)", small, block)
    lines = [shlex.split(line, comments=True) for line in block.splitlines()]
    return [line[1:] for line in lines if line[:1] == ["userdp"]]


def letters(path: Path) -> None:
    """The mailbox of sixty people."""
    draw = random.Random(0)
    words = ["the", "a", "mail", "of", "you", "we", "to", "plan", "meeting", "at", "noon"]
    path.write_text(
        "".join(
            json.dumps({"sender": f"u{user}", "body": " ".join(draw.choices(words, k=80))}) + "\n"
            for user in range(60)
            for _ in range(4)
        ),
        encoding="utf-8",
    )


@dataclass
class Book:
    """What was paid, by hand, and every place that prints it."""

    tell: Teller = field(default_factory=Teller)
    paid: dict[str, float] = field(default_factory=dict)

    def same(self, run: Path, parts: list[str], *, conditional: bool, fixed: bool) -> None:
        """Each printer says the sum of these parts, and the same sentence."""
        tell, whole = self.tell, math.fsum(self.paid[part] for part in parts)
        card, page = run.parent / "summary.html", run.parent / "report.html"
        said = [
            tell.done("account", "--ledger", run),
            tell.done("report", run, "--out", page, "--public", "--summary", card, "--overwrite")[
                "runs"
            ][0],
            tell.done("verify", run)["claim"],
            tell.done("verify", run / "model")["claim"],
        ]
        for one in said:
            assert one["epsilon"] == pytest.approx(whole, rel=1e-9), one
            assert bool(one["conditions"]) == conditional, one
            assert one["standing"] == ("guarantee" if fixed else "spent so far"), one
        sentence = f"(ε ≤ {round_up(said[0]['epsilon'])}, δ = "
        written = tell.done("generate", run, "--records", 2, "--max-tokens", 4)["headline"]
        texts = [card.read_text(encoding="utf-8"), page.read_text(encoding="utf-8"), written]
        assert {one["headline"] for one in (*said[:3],)} == {written}
        assert all(sentence in text for text in texts)


def price(plan: Plan) -> float:
    """ε of a plan's steps, from its mechanism."""
    mechanism = plan.mechanism
    assert mechanism is not None
    return float(mechanism.epsilon(plan.budget.target_delta).upper)


@pytest.mark.slow
def test_what_readme_and_docs_say_prints_claims_that_are_right_by_hand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    letters(tmp_path / "mail.jsonl")
    book, at = Book(), tmp_path

    # README: from records to a private model.
    for command in commands("README.md", "## From records to a private model"):
        book.tell.done(*[word.replace("mail.csv", "mail.jsonl") for word in command])
    book.paid["run"] = price(Plan.load(at / "run" / "plan.json"))
    assert round_up(book.paid["run"]) == "4.0000"
    book.same(at / "run", ["run"], conditional=False, fixed=True)

    # docs/report.md: a loss that may be published is paid for, and is no part of the model.
    for command in commands("docs/report.md", "# "):
        book.tell.done(*command)
    book.paid["loss"] = 0.5
    book.same(at / "run", ["run"], conditional=False, fixed=True)
    everything = book.tell.done("account", "--ledger", "store")
    assert everything["epsilon"] == pytest.approx(math.fsum(book.paid.values()))

    # docs/planning.md, on top of the model: all that was paid before may have chosen the plan.
    asked = ("--population", 200, "--delta", 1e-5, "--budget", 8, "--steps", 3, "--epsilon", 16)
    book.tell.done("store", "stats", "store", "--epsilon", 1, "--ask", "users")
    measured = ("source=dp-release", "users=60", "max_group_size=2", "epsilon=8")
    book.tell.done(
        "plan", "store", "--model", "run/model", *asked, "--most-noise", 1000,
        *(word for one in measured for word in ("--set", f"measure.{one}")),
        "--norms-out", "norms.json", "--out", "plan.json",
    )  # fmt: skip
    book.tell.done("train", "store", "--out", "next", "--plan", "plan.json", "--model", "run/model")
    book.paid |= {"stats": 1.0, "norms": 8.0, "next": price(Plan.load(at / "plan.json"))}
    book.same(at / "next", list(book.paid), conditional=True, fixed=False)

    # docs/tuning.md: one of two learning rates, chosen at the price of choosing.
    book.tell.done(
        "tune", "store", "--out", "sweep", "--plan", "run/plan.json", "--learning-rate", 0.001,
        0.003, "--tuning", "private-selection", "--mean-trials", 2, "--epsilon", 6,
    )  # fmt: skip
    book.paid["selection"] = 6.0
    won = book.tell.done("account", "--ledger", "sweep/winner")
    assert won["epsilon"] <= math.fsum(book.paid.values())
    book.paid["selection"] += won["epsilon"] - math.fsum(book.paid.values())
    assert book.paid["selection"] > 5.9
    book.same(at / "sweep" / "winner", list(book.paid), conditional=True, fixed=False)

    # Text that a model wrote, prepared as a store of its own: whoever trains on it has learned
    # all that the model had. (The store is of nobody else, so its own price is of other people.)
    book.tell.done("generate", "next", "--records", 40, "--max-tokens", 24, "--out", "made.jsonl")
    user = ("--user", "generated_by", "--held-out-users", 0)
    book.tell.done("prepare", "made.jsonl", *user, "--out", "made")
    book.tell.done("train", "made", "--out", "again", "--plan", "run/plan.json")
    book.paid["again"] = book.paid["run"]
    learned = ["run", "loss", "stats", "norms", "next", "again"]
    book.same(at / "again", learned, conditional=True, fixed=False)

    # docs/claim.md: what was recorded before a look was not chosen by it.
    book.tell.done("prepare", "mail.jsonl", "--user", "sender", "--text", "body",
                   "--out", "fresh")  # fmt: skip
    (at / "declared").mkdir()
    monkeypatch.chdir(at / "declared")
    (at / "fresh").rename(at / "declared" / "store")
    Plan.load(at / "run" / "plan.json").save(Path("plan.json"))
    for command in commands("docs/claim.md", "**Declared and inherited constants.**"):
        book.tell.done(*command)
    book.same(Path("run"), ["run"], conditional=False, fixed=True)
