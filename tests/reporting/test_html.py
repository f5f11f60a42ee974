"""The page: what it says, that it stands alone, and that everybody can read it."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import date
from decimal import Decimal
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest

from tests.plans import changed_plan
from tests.reporting.conftest import MakeRun, examples_plan, users_plan
from userdp.claims import claim
from userdp.claims.claims import second_opinion
from userdp.errors import UseError
from userdp.plans import Plan
from userdp.reporting.about import About
from userdp.reporting.html import render_report
from userdp.reporting.operator_facts import read_operator
from userdp.reporting.run_facts import RunFacts, read_runs
from userdp.reporting.summary import render_summary
from userdp.vocabulary import Adjacency, Guarantee, round_up


def full_page(*runs: Path) -> str:
    return render_report(read_runs(runs), operator=[read_operator(run) for run in runs])


class Outline(HTMLParser):
    """Ids, links, elements that could load something, and whether tags close in order."""

    void = {"meta", "link", "br", "img", "hr", "input"}  # noqa: RUF012

    def __init__(self, page: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name == "id":
                self.ids.append(value or "")
            if name == "href":
                self.links.append(value or "")
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.void:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag


def test_the_claim_is_recomputed_from_the_ledger_and_rounded_up(make_run: MakeRun) -> None:
    run = make_run()
    page = full_page(run)
    # Independent of the claim: the same mechanism, priced from the plan's constants, with Gaussian
    # noise; that of the run is within 1e-45 of it, which the claim adds to δ.
    epsilon = users_plan().mechanism.epsilon(1e-5).upper
    shown = re.search(r"\(ε ≤ ([\d.]+), δ = 10⁻⁵\)", page)
    assert shown is not None
    assert 0 <= Decimal(shown.group(1)) - Decimal(epsilon) < Decimal("1e-4")
    assert epsilon <= claim(run).guarantee.epsilon <= epsilon * (1 + 1e-13)


def test_epsilon_is_read_from_nowhere_else(make_run: MakeRun) -> None:
    run = make_run(config={"epsilon": 0.04321, "epsilons": 0.04321, "train": {"epsilon": 0.04321}})
    assert "0.0432" not in full_page(run)


def test_the_claim_says_unit_adjacency_sampler_and_accountant(make_run: MakeRun) -> None:
    headline = read_runs([make_run()])[0].claim.headline
    for word in ("per user", "add-or-remove", "δ ="):
        assert word in headline
    page = full_page(make_run("other"))
    above = page[: page.index('id="meaning"')]
    for word in (
        "user",
        "add-or-remove",
        "Poisson sampling of users",
        "Accountant",
        "One id, one person",
    ):
        assert word.lower() in above.lower()


@pytest.mark.slow
def test_one_page_stands_alone(make_run: MakeRun) -> None:
    page = full_page(make_run("a"), make_run("b", examples_plan()))
    outline = Outline(page)
    assert not outline.open
    assert not outline.tags & {"script", "link", "img", "iframe", "object", "embed", "form"}
    assert not {name for name in outline.attributes if name in ("src", "srcset", "data")}
    assert not {name for name in outline.attributes if name.startswith("on")}
    assert all(link.startswith("#") for link in outline.links)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert len(page) < 3_000_000


@pytest.mark.slow
def test_ids_are_unique_and_links_lead_somewhere(make_run: MakeRun) -> None:
    page = full_page(make_run("a"), make_run("b", examples_plan(), attempts=2))
    outline = Outline(page)
    assert len(outline.ids) == len(set(outline.ids))
    assert {link[1:] for link in outline.links} <= set(outline.ids)


def test_a_name_is_text_not_markup(make_run: MakeRun) -> None:
    run = make_run("<script>alert(1)</script>".replace("/", "-"))
    page = full_page(run)
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


@pytest.mark.slow
def test_the_same_runs_give_the_same_page(make_run: MakeRun) -> None:
    run = make_run()
    assert full_page(run) == full_page(run)


@pytest.mark.slow
def test_no_epsilon_is_shown_for_runs_that_claim_none(make_run: MakeRun) -> None:
    shuffled = changed_plan(users_plan(), unsafe_shuffle=True)
    pages = {
        "trained without privacy": full_page(make_run("plain", private=False)),
        "shuffled batches": full_page(make_run("shuffled", shuffled)),
        "known seed": full_page(make_run("seeded", facts={"unsafe_seeds": True})),
    }
    for why, page in pages.items():
        assert "No ε is claimed" in page
        assert why in page
        assert not re.search(
            r"ε(?:\s|&nbsp;)≤(?:\s|&nbsp;)(?:<strong[^>]*>)?[\d.]",
            page.split('id="assumptions"')[0],
        )


def test_an_interrupted_run_claims_its_plan_and_says_what_it_spent(make_run: MakeRun) -> None:
    page = full_page(make_run(attempts=2))
    assert "2 of 3" in page
    assert "interrupted" in page
    hero = " ".join(page[: page.index('id="meaning"')].split())
    claimed, spent = (re.search(words, hero) for words in (r"ε ≤ ([\d.]+)", r"cost ε = ([\d.]+)"))
    assert claimed is not None
    assert spent is not None
    assert claimed.start() < spent.start()
    assert claimed.group(1) == round_up(users_plan().guarantee().epsilon)
    assert spent.group(1) == round_up(users_plan().guarantee(2).epsilon)
    assert "That is no claim" in hero[spent.start() :]


def other_adjacency(run: RunFacts) -> RunFacts:
    guarantee: Guarantee = replace(run.guarantee, adjacency=Adjacency.REPLACE)
    return replace(run, claim=replace(run.claim, guarantee=guarantee))


def test_a_run_that_did_not_end_is_not_said_to_have_released_a_model(make_run: MakeRun) -> None:
    for name, attempts in (("stopped", 1), ("ended", None)):
        (facts,) = read_runs([make_run(name, attempts=attempts)])
        for page in (render_report([facts]), render_summary(facts)):
            words = " ".join(re.sub(r"<[^>]+>", "", page).split())
            assert (f"The model that {name} released is" in words) is (name == "ended")
            said = f"{name} has released no model yet. What it may still release by its plan is (ε"
            assert (said in words) is (name == "stopped")


@pytest.mark.slow
def test_different_adjacencies_are_not_compared_without_saying_so(make_run: MakeRun) -> None:
    runs = read_runs([make_run("a"), make_run("b", examples_plan())])
    operator = [read_operator(run.path) for run in runs]
    alike = render_report(runs, operator=operator)
    assert "cannot be compared" not in alike
    assert "Privacy against held-out loss" in alike
    unlike = render_report((runs[0], other_adjacency(runs[1])), operator=operator)
    assert "cannot be compared" in unlike[: unlike.index('id="meaning"')]
    assert "Privacy against held-out loss" not in unlike
    assert "run on the same people" not in unlike


@pytest.mark.slow
def test_runs_on_one_store_are_added_up(make_run: MakeRun) -> None:
    runs = read_runs([make_run("a"), make_run("b", examples_plan())])
    page = render_report(runs)
    total = re.search(
        r'class="number">([\d.]+)</strong> at δ&nbsp;=&nbsp;<span class="number">2·10⁻⁵', page
    )
    assert total is not None
    exact = sum(Decimal(run.guarantee.epsilon) for run in runs)
    assert 0 <= Decimal(total.group(1)) - exact < Decimal("1e-4")
    elsewhere = [runs[0], replace(runs[1], store="dead" * 8)]
    assert "on the same people. Who sees" not in render_report(elsewhere)


def test_different_deltas_are_pointed_out(make_run: MakeRun) -> None:
    page = render_report(read_runs([make_run("a"), make_run("b", users_plan(delta=1e-6))]))
    assert "δ differs between these runs (10⁻⁶, 10⁻⁵)" in page


@pytest.mark.slow
def test_the_command_on_the_page_gives_the_epsilon_on_the_page(
    make_run: MakeRun, capsys: pytest.CaptureFixture[str]
) -> None:
    import html
    import json

    from userdp.cli.app import run as userdp

    for name, plan in (("a", users_plan()), ("b", examples_plan())):
        page = full_page(make_run(name, plan))
        command = re.search(r"<code>userdp (account --sampling [^<]+)</code>", page)
        assert command is not None
        assert userdp([*html.unescape(command.group(1)).split(), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["epsilon"]
        assert found <= epsilon_of(plan) <= found * (1 + 1e-13)
        assert round_up(found, 6) == round_up(epsilon_of(plan), 6)


def epsilon_of(plan: Plan) -> float:
    return plan.guarantee().epsilon


def test_a_page_needs_runs(make_run: MakeRun) -> None:
    with pytest.raises(UseError, match="no run"):
        render_report([])
    with pytest.raises(UseError, match="operator's facts"):
        render_report(read_runs([make_run()]), operator=[])


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2.2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_colours_meet_wcag_aa(theme: int) -> None:
    css = (resources.files("userdp.reporting") / "templates" / "report.css").read_text("utf-8")
    block = re.findall(r":root \{(.*?)\}", css, flags=re.DOTALL)[theme]
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
    text = [("ink", "paper"), ("ink", "raised"), ("quiet", "paper"), ("quiet", "raised"),
            ("accent", "paper"), ("accent", "raised"), ("warn-ink", "warn-paper"),
            ("warn-ink", "paper"), ("operator-ink", "operator-paper"), ("operator-ink", "paper"),
            ("accent", "warn-paper"), ("ink", "warn-paper"), ("quiet", "warn-paper")]  # fmt: skip
    for front, back in text:
        assert contrast(colours[front], colours[back]) >= 4.5, (front, back)
    marks = [*(f"series-{number}" for number in range(1, 7)), "focus", "operator-rule"]
    for mark in marks:
        assert contrast(colours[mark], colours["paper"]) >= 3, mark


def test_the_head_says_who_releases_what_and_a_second_accountant_speaks(make_run: MakeRun) -> None:
    about = About(
        organisation="<b>Institute</b>",
        contact="privacy@example.org",
        data_description="Letters.",
        date=date(2026, 1, 2),
    )
    facts = {"store_facts": {"user_is": "the field 'author'"}}
    run = make_run(facts=facts)
    page = " ".join(render_report(read_runs([run]), about=about).split())
    hero = page[: page.index('id="meaning"')]
    assert "&lt;b&gt;Institute" in hero
    assert "Report of 2026-01-02" in hero
    assert "named by the field &#39;author&#39;" in hero
    assert "Letters." in hero
    second = second_opinion(claim(run))
    assert second is not None
    assert f"says ε ≤ {round_up(second.epsilon)} at the same δ" in page
    assert "What is said of the organisation and the data is the operator’s word" in page


def test_numbers_on_the_page_have_one_format(make_run: MakeRun) -> None:
    runs = [make_run("a", config={"train": {"learning_rate": 2e-5}}), make_run("b")]
    page = re.sub(r"<(pre|style|svg).*?</\1>", "", render_report(read_runs(runs)), flags=re.DOTALL)
    assert "2·10⁻⁵" in page
    assert not re.search(r"\d(\.\d+)?e[-+]?\d", re.sub(r"<[^>]*>", " ", page))


def test_what_is_the_same_in_all_runs_is_told_once(make_run: MakeRun) -> None:
    page = render_report(read_runs([make_run("a"), make_run("b", users_plan(steps=4))]))
    same = " ".join(page[page.index("The same in all runs") :].split())
    assert "noise multiplier σ <strong>0.75</strong>" in same
    assert page.count("noise multiplier σ") == 1
    assert re.search(r'<th scope="row">steps T</th>', page)
