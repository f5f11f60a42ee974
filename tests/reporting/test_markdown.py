"""Hostile names and settings: on the rendered card and page they are words, nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml

from tests.plans import changed_plan
from tests.reporting.conftest import MakeRun, examples_plan
from tests.reporting.test_html import Outline
from userdp.claims.lineage import Lineage
from userdp.claims.parts import Condition, ConditionKind, Query
from userdp.reporting import rendering
from userdp.reporting.html import render_report
from userdp.reporting.markdown import fenced, markdown, prose, visible
from userdp.reporting.model_card import render_model_card
from userdp.reporting.operator_facts import read_operator
from userdp.reporting.run_facts import RunFacts, read_run

markdown_it = pytest.importorskip("markdown_it", reason="comes with rich")

HOSTILE = (
    "](javascript:alert(1)) [x](http://evil.example)",
    "| ε, at most | **0.1** |",
    "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "a\n\n# ε = 0\n\n- item\n\n| a | b |\n|---|---|\n| c | d |",
    "a\r\n```\n# out of the fence\n```",
    "`code` ``` ~~~ **bold** _it_ ~~no~~ &lt;b&gt; &#91; $x$ \\",
    "![img](data:text/html,x) <a href='x'>y</a> <!-- gone -->",
    "a\u2028# b\u0085# c\x1b[31m\u202e d",
    "---\ntitle: other\n---",
    "{{ 7 * 7 }} {% raw %} {# no #}",
    "x' ; rm -rf / #```",
)
PLAN = changed_plan(examples_plan(steps=1), sampling_probability=1.0)  # quick to price


def hostile_run(make_run: MakeRun, number: int, text: str) -> RunFacts:
    """A run in which everything that comes from a file, or is a name, is ``text``."""
    config = {
        "train": {"model": text, "schedule": text},
        "plan_basis": f"non-private statistics: {text}",
        "store_facts": {"owners": text},
    }
    release = {
        "split": text,
        "loss_bound": 8.3,
        "epsilon": 0.5,
        "model": {"user_loss": 4.87125, "standard_error": 0.01},
    }
    base, text_of = (
        Condition(kind=kind, told=text) for kind in (ConditionKind.BASE, ConditionKind.FILTERED)
    )
    folder = make_run(
        f"r{number}",
        PLAN,
        config=config,
        facts={"userdp": text},
        lineage=Lineage(
            parts=(Query(id="q", name=text, pure_epsilon=0.5),), conditions=(base, text_of)
        ),
        releases=[release],
    )
    folder = folder.rename(folder.with_name(f"{text} {number}".replace("/", "\N{DIVISION SLASH}")))
    return read_run(folder)


def body(card: str) -> str:
    """The card's Markdown, without its front matter, which must be YAML of known keys."""
    match = re.match(r"---\n(.*?)\n---\n", card, re.S)
    assert match is not None
    head = yaml.safe_load(match.group(1))
    known = {"library_name", "pipeline_tag", "tags", "model-index", "base_model"}
    assert set(head) <= known
    return card[match.end() :]


def shape(text: str) -> list[str]:
    """What a reader of CommonMark with tables sees in a text, its words left out."""
    reader = markdown_it.MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])

    def walk(tokens: list) -> Iterator[str]:
        for token in tokens:
            if token.type not in ("text", "softbreak"):
                yield token.type + token.info
            yield from walk(token.children or [])

    return list(walk(reader.parse(text)))


def test_a_card_has_the_same_shape_whatever_is_written_in_files(make_run: MakeRun) -> None:
    expected = shape(body(render_model_card(hostile_run(make_run, 99, "plain"))))
    assert {"heading_open", "table_open", "fenceconsole"} <= set(expected)
    assert not any("html" in kind or "link" in kind for kind in expected)
    for number, text in enumerate(HOSTILE):
        card = render_model_card(hostile_run(make_run, number, text))
        assert shape(body(card)) == expected, text
        card.encode()


@pytest.mark.pitfall(number=28)
def test_broken_twin_an_unescaped_template_is_caught(make_run: MakeRun, monkeypatch) -> None:
    monkeypatch.setattr(rendering, "escaped", lambda value: value)
    expected = shape(body(render_model_card(hostile_run(make_run, 99, "plain"))))
    found = [
        shape(body(render_model_card(hostile_run(make_run, number, text))))
        for number, text in enumerate(HOSTILE)
    ]
    assert sum(one != expected for one in found) >= 8  # the others aim at pages, or at YAML


@pytest.mark.slow
def test_a_page_has_the_same_elements_whatever_is_written_in_files(make_run: MakeRun) -> None:
    expected = elements(hostile_run(make_run, 99, "plain"))
    for number, text in enumerate((*HOSTILE[:3], HOSTILE[7])):
        assert elements(hostile_run(make_run, number, text)) == expected, text


def elements(run: RunFacts) -> tuple[set[str], set[str], list[str]]:
    """Tags, attributes and links of a page, the operator's section and its plots included."""
    page = render_report([run], operator=[read_operator(run.path)])
    page.encode()
    assert not re.search("[\u202e\x1b\u2028]", page)
    outline = Outline(page)
    assert not outline.open
    return outline.tags, outline.attributes, outline.links


@pytest.mark.parametrize("text", HOSTILE)
def test_words_come_out_as_they_went_in(text: str) -> None:
    reader = markdown_it.MarkdownIt("commonmark").enable(["table"])
    for source in (markdown(text), f"| a |\n|---|\n| {markdown(text)} |", f"# {markdown(text)}"):
        tokens = [t for t in reader.parse(source) if t.type == "inline" and t.content != "a"]
        words = "".join(child.content for child in tokens[-1].children or [])
        assert words.strip() == visible(text).strip()
        assert "\n" not in source.removeprefix("| a |\n|---|\n")


def test_a_fence_is_longer_than_what_it_holds() -> None:
    (block,) = markdown_it.MarkdownIt().parse(fenced("a\n````\nb", "console"))
    assert block.content == "a\n````\nb\n"
    assert block.info == "console"


def test_backticks_of_ours_are_code_and_a_cell_stays_one() -> None:
    reader = markdown_it.MarkdownIt("commonmark").enable("table")
    tokens = reader.parse(f"| a |\n|---|\n| {prose('see `x | y`, <b>')} |")
    cell = [token for token in tokens if token.type == "inline"][-1]
    assert [(c.type, c.content) for c in cell.children if c.content] == [
        ("text", "see "),
        ("code_inline", "x | y"),
        ("text", ", <b>"),
    ]
