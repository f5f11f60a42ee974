"""The headline: a claim in one sentence, with all that it rests on, the same wherever it is."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.reporting.conftest import MakeRun, users_plan
from userdp.claims import Condition, Lineage, claim
from userdp.claims.claims import SPENT_SO_FAR, Claim, in_words
from userdp.claims.parts import ConditionKind, Query, Unclaimed
from userdp.cli.app import run as userdp
from userdp.plans.origin import LedgerLine, NonPrivateLook
from userdp.reporting.comparison import compare
from userdp.reporting.constants import constants_of
from userdp.reporting.html import render_report
from userdp.reporting.markdown import markdown
from userdp.reporting.model_card import render_model_card
from userdp.reporting.run_facts import read_run
from userdp.vocabulary import round_up

LOOKED = Condition(kind=ConditionKind.LOOKS, told="stats")
BASE = Condition(kind=ConditionKind.BASE, told="gpt2")
ASKED = Query(id="q", name="users", pure_epsilon=0.5)


@pytest.fixture
def later(make_run: MakeRun) -> Path:
    """A run that an answer and a look came before, from a base of unknown origin, stopped."""
    lineage = Lineage(parts=(ASKED,), conditions=(LOOKED, BASE))
    return make_run("later", attempts=1, lineage=lineage)


def test_conditions_and_standing_follow_the_claim(later: Path) -> None:
    told = claim(later)
    epsilon = users_plan().guarantee().epsilon + 0.5
    assert told.headline.startswith(
        f"(ε ≤ {round_up(epsilon)}, δ = 1e-05)-DP per user, add-or-remove adjacency, provided that "
    )
    assert f"{BASE.in_words}; and {LOOKED.in_words}" in told.headline
    assert told.headline.index("provided that") < told.headline.index("spent so far")


def test_without_conditions_nothing_is_provided(make_run: MakeRun) -> None:
    told = claim(make_run())
    assert re.fullmatch(
        r"\(ε ≤ [\d.]+, δ = 1e-05\)-DP per user, add-or-remove adjacency", told.headline
    )


@pytest.mark.parametrize("why", ["training without privacy", "a federation by FedAvg"])
def test_a_model_that_descends_from_what_has_no_price_says_so(make_run: MakeRun, why: str) -> None:
    told = claim(make_run(lineage=Lineage(parts=(Unclaimed(id="x", why=why),))))
    assert told.headline.startswith("no ε is claimed")
    assert why.split()[-1] in told.headline
    assert "DP per" not in told.headline


def test_every_command_says_the_same_headline(
    later: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    users_plan().save(later / "plan.json")
    page = tmp_path / "page.html"
    told = {}
    for name, command in {
        "account": ["account", "--ledger", str(later)],
        "report": ["report", str(later), "--public", "--out", str(page), "--overwrite"],
        "verify": ["verify", str(later)],
    }.items():
        assert userdp(command) == 0
        assert claim(later).headline in " ".join(capsys.readouterr().out.split())
        assert userdp([*command, "--json"]) == 0
        told[name] = json.loads(capsys.readouterr().out)
    headlines = {
        told["account"]["headline"],
        told["report"]["runs"][0]["headline"],
        told["verify"]["claim"]["headline"],
    }
    assert headlines == {claim(later).headline}


def test_page_and_card_list_conditions_and_parts_and_what_was_spent(later: Path) -> None:
    facts = read_run(later)
    card, page = render_model_card(facts), render_report([facts])
    assert markdown(facts.claim.headline) in card
    spent = round_up(users_plan().guarantee(1).epsilon)
    for text in (card, " ".join(page.split())):
        assert text.count(LOOKED.in_words[1:]) >= 2  # in the headline, and as an assumption
        assert "provided that" in text
        assert "DP answer: users" in text
        assert SPENT_SO_FAR.split(" (")[0] in text
        assert spent in text
        assert text.index(round_up(facts.guarantee.epsilon)) < text.index(spent)
    assert "| DP answer: users | 0.5000 | 0 |" in card
    assert 'id="assumption-exact-looks"' in page


def test_a_claim_of_one_part_has_no_table_of_parts(make_run: MakeRun) -> None:
    facts = read_run(make_run())
    for text in (render_report([facts]), render_model_card(facts)):
        assert "made of" not in text
        assert "spent so far" not in text


def test_two_runs_share_what_both_descend_from(make_run: MakeRun) -> None:
    """An answer that both inherited is counted once in what both tell together."""
    runs = [read_run(make_run(name, lineage=Lineage(parts=(ASKED,)))) for name in "ab"]
    (together,) = compare(runs).together
    assert together.epsilon == round_up(2 * users_plan().guarantee().epsilon + 0.5)


def test_broken_twin_a_headline_without_its_conditions_is_caught(
    later: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Claim, "headline", property(lambda self: in_words(self.guarantee)))
    with pytest.raises(AssertionError):
        test_conditions_and_standing_follow_the_claim(later)


@pytest.mark.parametrize(
    ("origins", "name"),
    [
        ({}, "declared population"),
        ({"population": LedgerLine(what="users", line="q")}, "DP releases in the store's ledger"),
        ({"population": NonPrivateLook(what="users")}, "non-private statistics"),
    ],
)
def test_only_a_number_of_the_operators_own_is_called_declared(
    make_run: MakeRun, origins, name
) -> None:
    run = read_run(make_run(plan=replace(users_plan(), origins=origins)))
    (row,) = [row for row in constants_of([run]).rows if "population" in row[0]]
    assert name in row[0]
    said = [line for line in render_model_card(run).splitlines() if "population" in line]
    assert any("declared" in line for line in said) is not bool(origins)
