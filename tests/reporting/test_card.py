"""The model card, and hostile names in it and on the page: they are words, nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import yaml

from tests.plans import changed_plan
from tests.reporting.conftest import MakeRun, examples_plan
from userdp.claims.lineage import Condition, ConditionKind, Lineage
from userdp.core.errors import UseError
from userdp.ledger.charged_parts import Query
from userdp.reporting import rendering
from userdp.reporting.assumptions import assumptions_of
from userdp.reporting.card import CardOptions, render_model_card
from userdp.reporting.facts import Facts, read_run
from userdp.reporting.rendering import markdown, visible

markdown_it = pytest.importorskip("markdown_it", reason="comes with rich")

RELEASE = {
    "split": "held-out-users",
    "loss_bound": 8.3,
    "epsilon": 0.5,
    "model": {"user_loss": 4.87125, "standard_error": 0.01},
    "difference": {"user_loss": -0.25, "standard_error": 0.02, "noise_error": 0.01, "bound": 1.0},
}
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


def head(card: str) -> dict:
    match = re.match(r"---\n(.*?)\n---\n", card, re.S)
    assert match is not None
    return yaml.safe_load(match.group(1))


def test_the_front_matter_is_what_the_hub_reads(make_run: MakeRun) -> None:
    from huggingface_hub import ModelCard

    run = read_run(make_run("a: 'b'", releases=[RELEASE]))
    given = CardOptions(license="mit", dataset=("org/letters",), tag=("code",))
    card = ModelCard(render_model_card(run, given)).data
    assert card.to_dict()["library_name"] == "transformers"
    assert card.license == "mit"
    assert card.datasets == ["org/letters"]
    assert {"userdp", "differential-privacy", "code"} <= set(card.tags)
    assert card.base_model is None, "a folder's name is none of the hub"
    (loss,) = card.eval_results
    assert (card.model_name, loss.metric_value) == ("a: 'b'", 4.87125)
    assert "released at ε = 0.5" in loss.metric_name


@pytest.mark.parametrize(
    "words", [{"license": "MIT license"}, {"base_model": "a/b/c"}, {"tag": ("a b",)}]
)
def test_words_that_the_hub_does_not_know_are_refused(words) -> None:
    with pytest.raises(UseError, match="no name as the Hugging Face hub writes it"):
        CardOptions(**words)


def test_it_says_what_the_page_says(make_run: MakeRun) -> None:
    facts = read_run(make_run("els", examples_plan(), releases=[RELEASE]))
    text = render_model_card(facts)
    for assumption in assumptions_of([facts]):
        assert markdown(assumption.title) in text
    for heading in ("Privacy", "Training", "Evaluation", "Uses and limits", "Model details"):
        assert f"## {heading}" in text
    for said in ("userdp account --sampling examples", "userdp verify els", "| −0.2500 ± 0.0200 |"):
        assert said.replace("−", "-") in text
    assert "from_pretrained" in text
    assert "safetensors" in render_model_card(facts, files=())


# ------------------------------------------------------------------------------ hostile words


def hostile_run(make_run: MakeRun, number: int, text: str) -> Facts:
    """A run in which everything that comes from a file, or is a name, is ``text``."""
    base, text_of = (
        Condition(kind=kind, told=text) for kind in (ConditionKind.BASE, ConditionKind.FILTERED)
    )
    folder = make_run(
        f"r{number}",
        PLAN,
        train={"model": text, "schedule": text},
        facts={
            "userdp": text, "base_model": {"origin": "folder", "name": text},
            "plan_basis": f"non-private statistics: {text}",
            "store_facts": {"owners": text, "user_is": text},
        },
        lineage=Lineage(
            parts=(Query(id="q", name=text, pure_epsilon=0.5),), conditions=(base, text_of)
        ),
        releases=[{**RELEASE, "split": text}],
    )  # fmt: skip
    folder = folder.rename(folder.with_name(f"{text} {number}".replace("/", "\N{DIVISION SLASH}")))
    return read_run(folder)


def body(run: Facts) -> str:
    """The card's Markdown, without its front matter, which must be YAML of known keys."""
    card = render_model_card(run)
    assert set(head(card)) <= {"library_name", "pipeline_tag", "tags", "model-index"}
    card.encode()
    return card.split("\n---\n", 1)[1]


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
    plain = body(hostile_run(make_run, 99, "plain"))
    expected = shape(plain)
    assert {"heading_open", "table_open", "fenceconsole", "fencepython"} <= set(expected)
    assert not any("html" in kind or "link" in kind for kind in expected)
    for table in re.findall(r"(?:^\|.*\n)+", plain, re.M):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}) == 1, table
    for number, text in enumerate(HOSTILE):
        assert shape(body(hostile_run(make_run, number, text))) == expected, text


@pytest.mark.pitfall(number=28)
def test_broken_twin_an_unescaped_template_is_caught(make_run: MakeRun, monkeypatch) -> None:
    monkeypatch.setattr(rendering, "escaped", lambda value: value)
    expected = shape(body(hostile_run(make_run, 99, "plain")))
    found = [
        shape(body(hostile_run(make_run, number, text))) for number, text in enumerate(HOSTILE)
    ]
    assert sum(one != expected for one in found) >= 8  # the others aim at pages, or at YAML


@pytest.mark.parametrize("text", HOSTILE)
def test_words_come_out_as_they_went_in(text: str) -> None:
    reader = markdown_it.MarkdownIt("commonmark").enable(["table"])
    for source in (markdown(text), f"| a |\n|---|\n| {markdown(text)} |", f"# {markdown(text)}"):
        tokens = [t for t in reader.parse(source) if t.type == "inline" and t.content != "a"]
        words = "".join(child.content for child in tokens[-1].children or [])
        assert words.strip() == visible(text).strip()
        assert "\n" not in source.removeprefix("| a |\n|---|\n")
