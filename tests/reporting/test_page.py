"""The page and the sheet: what they say, that they stand alone, that names are words in them."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from datetime import date
from decimal import ROUND_CEILING, Decimal
from operator import itemgetter
from pathlib import Path

import numpy as np
import pytest

from tests.plans import changed_plan
from tests.reporting.conftest import MakeRun, examples_plan, users_plan
from userdp import report
from userdp.accounting.mechanisms import Mixture, binomial_steps
from userdp.accounting.tradeoff import DeltaCurve
from userdp.claims import Condition, Lineage
from userdp.claims.claim_sentences import SPENT_SO_FAR
from userdp.claims.lineage import ConditionKind
from userdp.cli.app import run as userdp
from userdp.core.errors import UseError
from userdp.core.vocabulary import Adjacency, round_up
from userdp.ledger.charged_parts import Query, Unclaimed
from userdp.reporting.card import render_model_card
from userdp.reporting.facts import About, read_run, read_runs
from userdp.reporting.operator_part import read_operator
from userdp.reporting.page import compare, detection_plot, render_report, render_summary
from userdp.reporting.rendering import markdown

ABOUT = About(
    organisation="<b>Institute</b>",
    contact="privacy@example.org",
    data_description="Letters to the editor. " * 8,
    report_date=date(2026, 1, 2),
)
LOOKED = Condition(kind=ConditionKind.LOOKS, told="stats")
BASE = Condition(kind=ConditionKind.BASE, told="gpt2")
ASKED = Query(id="q", name="users", pure_epsilon=0.5)


def words_of(page: str) -> str:
    """What a reader sees, details opened."""
    bare = re.sub(r"<(style|title).*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(bare).replace("\u00a0", " ").split())


def first_screen(page: str) -> str:
    return words_of(page[: page.index('id="meaning"')])


def values_of(attribute: str, page: str) -> list[str]:
    return re.findall(rf'\s{attribute}="([^"]*)"', page)


@pytest.fixture
def later(make_run: MakeRun) -> Path:
    """A run that an answer and a look came before, from a base of unknown origin, stopped."""
    return make_run("later", attempts=1, lineage=Lineage(parts=(ASKED,), conditions=(LOOKED, BASE)))


def test_the_first_screen_says_claim_meaning_and_conditions(make_run: MakeRun) -> None:
    run = read_run(make_run(facts={"store_facts": {"user_is": "the field 'author'"}}))
    # Independent of the claim: the same mechanism, priced from the plan's constants.
    epsilon = round_up(users_plan().mechanism.epsilon(1e-5).upper)
    for page in (render_report([run], about=ABOUT), render_summary(run, about=ABOUT)):
        end = "What this" if "<nav" in page else "What it rests on"
        for said in (
            f"The model that “run” released is (ε ≤ {epsilon}, δ = 1e-5)",
            "differentially private per user",
            f"is right at most {run.best_guess} of the time",
            f"accuses rightly at most {run.detection} of the time",
            "It holds without conditions beyond the assumptions",
            "<b>Institute</b>",
        ):
            assert said in words_of(page).split(end)[0]
        whole = words_of(page)
        for said in ("named by the field 'author'", "2026-01-02", "Letters to", "operator’s word"):
            assert said in whole
        assert "Made of" not in whole
        assert "spent so far" not in whole


def lines_in(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def mechanism(run: Path) -> Mixture:
    """From the lines of the attempts alone, not from the plan: what was drawn, at which noise."""
    head, *rest = lines_in(run / "ledger.jsonl")
    attempts = [line["step"] for line in rest if line["kind"] == "attempt"]
    (probability,) = {line["sampling"]["sampling_probability"] for line in attempts}
    (noise,) = {line["noise_std"] / line["l2_clip_norm"] for line in attempts}
    by_user = attempts[0]["sampling"]["kind"] == "users"
    return binomial_steps(
        sampling_probability=probability,
        noise_multiplier=noise,
        steps=len(attempts),
        group_size=1 if by_user else head["plan"]["sampling"]["group_size"],
    )


def rows_of(page: str, caption: str) -> dict[str, list[str]]:
    """The cells of the table with this caption, by row name."""
    table = next(t for t in re.findall(r"<table.*?</table>", page, re.S) if caption in t)
    found = {}
    for row in re.findall(r"<tr[^>]*>\s*(<th scope=\"row\">.*?)</tr>", table, re.S):
        name, *cells = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.S)
        found[name] = [re.sub(r"<[^>]+>", "", cell).strip() for cell in cells]
    return found


def test_every_epsilon_is_that_of_the_ledgers_lines(make_run: MakeRun) -> None:
    plans = {"uls": users_plan(), "els": examples_plan(), "more": users_plan(steps=9)}
    runs = [make_run(name, plan) for name, plan in plans.items()]
    page = render_report(read_runs(runs))
    claims, total = rows_of(page, "The claim of each run"), Decimal(0)
    assert list(claims) == [run.name for run in runs]
    for run in runs:
        epsilon = mechanism(run).epsilon(1e-5).upper
        total += Decimal(epsilon)
        printed = str(Decimal(epsilon).quantize(Decimal("0.0001"), rounding=ROUND_CEILING))
        assert claims[run.name][:4] == [printed, "1e-5", "user", "add-or-remove"]
        assert f"userdp account --ledger {run.name}\n" in page
    whole = total.quantize(Decimal("0.0001"), ROUND_CEILING)
    assert f'class="number">{whole}</strong> at δ' in page


def test_the_page_is_read_in_five_minutes_and_shows_nothing_that_is_absent(make_run) -> None:
    run = make_run()
    (run / "operator.jsonl").unlink()
    page = render_report([read_run(run)], operator=[read_operator(run)], about=ABOUT)
    of_the_operator = len(ABOUT.data_description.split())
    assert len(words_of(page).split()) - of_the_operator <= 1300, "with all details open"
    unfolded = re.sub(r"<details>.*?</details>", "", page, flags=re.DOTALL)
    assert unfolded.count("<li>") == 5, "the assumptions that matter"
    for absent in ("counted as zero", "Passes halved", "Machine", "None", "–", "Losses released"):
        assert absent not in words_of(page)


def test_conditions_parts_and_what_was_spent_stand_on_page_card_and_sheet(later: Path) -> None:
    run = read_run(later)
    spent = round_up(users_plan().guarantee(1).epsilon)
    card = render_model_card(run)
    assert markdown(run.claim.headline.replace("1e-05", "1e-5")) in card
    assert "| DP answer: users | 0.5000 | 0 |" in card
    for text in (card, words_of(render_report([run])), words_of(render_summary(run))):
        for said in (LOOKED.in_words[1:], "rovided that", SPENT_SO_FAR.split(" (")[0], spent):
            assert said in text
        assert text.index(run.epsilon) < text.index(spent)
        assert ("o bound on an attacker" in text, "is right at most" in text) == (True, False)
    page = words_of(render_report([run]))
    assert "DP answer: users" in page
    assert "has released no model yet. What it may still release by its plan is (ε" in page


@pytest.mark.parametrize(
    ("why", "options"),
    [
        ("trained on without privacy", {"private": False}),
        ("shuffled batches", {"plan": changed_plan(users_plan(), unsafe_shuffle=True)}),
        ("known seed", {"payer": Unclaimed(id="run", why="a known seed")}),
    ],
)
def test_no_epsilon_is_shown_for_runs_that_claim_none(make_run: MakeRun, why, options) -> None:
    run = read_run(make_run(**options))
    card = render_model_card(run)
    assert "differential-privacy" not in card[: card.index("---", 3)]
    for page in (render_report([run]), render_summary(run), card):
        words = words_of(page)
        assert "No ε is claimed" in words
        assert why in words
        assert not re.search(r"ε ≤ [\d.]", words)


def test_it_stands_alone(make_run: MakeRun) -> None:
    runs = read_runs([make_run("a"), make_run("<script>b", examples_plan(), attempts=2)])
    operator = [read_operator(run.path) for run in runs]
    for page in (render_report(runs, operator=operator), render_summary(runs[1])):
        assert not re.search(r"<(script|link|iframe|object|embed|form)\b|<[^>]*\son\w+=", page)
        sources, ids = values_of("src", page), values_of("id", page)
        assert all(one.startswith("data:image/svg+xml;base64,") for one in sources)
        assert len(ids) == len(set(ids))
        assert {link.removeprefix("#") for link in values_of("href", page)} <= set(ids)
        assert not re.search(r"@import|url\(", page)
        assert len(page) < 3_000_000
    assert render_report(runs, operator=operator) == render_report(runs, operator=operator)


def test_runs_are_compared_and_added_up_only_where_their_claims_are_alike(make_run) -> None:
    runs = read_runs([make_run(name, lineage=Lineage(parts=(ASKED,))) for name in "ab"])
    operator = [read_operator(run.path) for run in runs]
    (together,) = compare(runs).together  # what both inherited counts once
    assert together["epsilon"] == round_up(2 * users_plan().guarantee().epsilon + 0.5)
    alike = render_report(runs, operator=operator)
    assert f"bounded by the sum: ε ≤ {together['epsilon']} at δ = 2e-5" in first_screen(alike)
    assert "cannot be compared" not in alike
    assert "Privacy against held-out loss" in alike

    other = replace(runs[1].guarantee, adjacency=Adjacency.REPLACE, delta=1e-6)
    other_kind = replace(runs[1], claim=replace(runs[1].claim, guarantee=other))
    unlike = render_report((runs[0], other_kind), operator=operator)
    assert "cannot be compared" in first_screen(unlike)
    assert "δ differs between these runs (1e-6, 1e-5)" in first_screen(unlike)
    assert "Privacy against held-out loss" not in unlike
    assert "ran on the same people" not in unlike

    others = [runs[0], replace(runs[1], store="dead" * 8)]
    assert "Privacy against held-out loss" not in render_report(others, operator=operator)
    elsewhere = compare(others)
    assert elsewhere.together == ()
    assert "different user stores" in elsewhere.warnings[0]


@pytest.mark.slow
@pytest.mark.parametrize("plan", [users_plan(), examples_plan()], ids=["users", "examples"])
def test_the_command_on_the_page_gives_the_epsilon_on_the_page(make_run, capsys, plan) -> None:
    page = render_report([read_run(make_run(plan=plan))])
    command = re.search(r"<code>userdp (account --sampling [^<]+)</code>", page)
    assert command is not None
    assert userdp([*html.unescape(command.group(1)).split(), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["epsilon"]
    assert round_up(found, 6) == round_up(plan.guarantee().epsilon, 6)
    assert f"# epsilon {round_up(found, 6)}" in page


def test_a_summary_is_about_one_model(make_run: MakeRun, tmp_path: Path) -> None:
    with pytest.raises(UseError, match="summary is about one model, and 2 runs are named"):
        report([make_run("a"), make_run("b")], summary=tmp_path / "summary.html")


# ---------------------------------------------------------------------------------- the figure


def lines_of(*runs: Path) -> dict[str, tuple[float, ...]]:
    plot = detection_plot([run for run in read_runs(runs) if run.private])
    return {} if plot is None else {one.name: one.ys for one in plot.series}


@pytest.mark.parametrize("plan", [users_plan(), examples_plan()], ids=["users", "examples"])
def test_a_claim_lies_between_the_same_training_with_less_and_with_more_epsilon(
    make_run, plan
) -> None:
    lines = lines_of(make_run("exact", plan))
    ((name, own),) = [one for one in lines.items() if one[0].startswith("this claim")]
    rising = [(1.0, lines["ε = 1"]), (8.0, lines["ε = 8"]), (float(name.split("≤ ")[1]), own)]
    curves = np.array([ys for _, ys in sorted(rising, key=itemgetter(0))])
    assert (np.diff(curves, axis=0) >= -1e-6).all()
    bare = DeltaCurve(epsilons=(1.0,), deltas=(1e-5,))
    assert lines["ε = 1"][32] < bare.max_true_positive_rate(0.25), "the mechanism's own"
    spent = make_run("parts", plan, lineage=Lineage(parts=(ASKED,)))
    assert lines_of(spent) == {}, "what was spent so far bounds no test"


def test_several_claims_are_drawn_beside_a_coin_alone(make_run: MakeRun) -> None:
    assert list(lines_of(make_run("a"), make_run("b"))) == ["a", "b", "a coin"]
    assert lines_of(make_run("plain", private=False)) == {}
