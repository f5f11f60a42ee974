"""The model card: what the hub reads, what a reader needs, and nothing of the operator's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.reporting.conftest import MakeRun, examples_plan
from tests.reporting.test_invariant_9 import depends_on_operator, leaks
from userdp.claims.lineage import Lineage
from userdp.claims.parts import Condition, ConditionKind, Query
from userdp.reporting.assumptions import assumptions_of
from userdp.reporting.markdown import markdown
from userdp.reporting.model_card import base_model_on_hub, render_model_card
from userdp.reporting.run_facts import read_run

RELEASE = {
    "split": "held-out-users",
    "loss_bound": 8.3,
    "epsilon": 0.5,
    "base": {"user_loss": 5.9, "standard_error": 0.01},
    "model": {"user_loss": 4.87125, "standard_error": 0.01},
}


def inherited(name: str) -> Lineage:
    """Two earlier answers and a condition, named by ``name``."""
    queries = (Query(id=str(n), name=name, pure_epsilon=0.5) for n in range(2))
    base = Condition(kind=ConditionKind.BASE, told=name)
    return Lineage(parts=tuple(queries), conditions=(base,))


def card(run: Path) -> str:
    return render_model_card(read_run(run))


def head(text: str) -> dict:
    match = re.match(r"---\n(.*?)\n---\n", text, re.S)
    assert match is not None
    return yaml.safe_load(match.group(1))


def test_the_front_matter_is_what_the_hub_expects(make_run: MakeRun) -> None:
    train = {"model": "openai-community/gpt2"}
    run = make_run("a: 'b'", config={"train": train}, releases=[RELEASE])
    found = head(card(run))
    assert found["library_name"] == "transformers"
    assert {"differential-privacy", "user-level-privacy"} <= set(found["tags"])
    assert "base_model" not in found  # a name with a place in it may be a folder's
    (index,) = found["model-index"]
    assert index["name"] == "a: 'b'"
    assert index["results"][0]["metrics"][0]["value"] == 4.87125
    hub = pytest.importorskip("huggingface_hub", reason="comes with transformers")
    data = hub.ModelCard(card(run)).data
    assert data.eval_results[0].metric_value == 4.87125


def test_it_says_what_the_page_says(make_run: MakeRun) -> None:
    run = make_run("els", examples_plan())
    facts, text = read_run(run), card(run)
    assert markdown(facts.claim.headline) in text
    for assumption in assumptions_of([facts]):
        assert assumption.title in text
    for heading in ("Privacy", "Training", "Evaluation", "Uses and limits", "Model details"):
        assert f"## {heading}" in text
    assert "| Examples of a user | 1 | 2 | 4 |" in text
    assert "userdp account --sampling examples" in text
    assert "userdp verify els" in text
    assert "train.toml" not in text, "it stays behind"
    assert "None was released" in text


def test_tables_are_tables(make_run: MakeRun) -> None:
    """Each row of a table has as many cells as its head, whatever the run is called."""
    run = make_run("a|b <i>", examples_plan(), releases=[RELEASE], lineage=inherited("a|b <i>"))
    for table in re.findall(r"(?:^\|.*\n)+", card(run), re.M):
        cells = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(cells) == 1, table
        assert re.fullmatch(r"\|(?:---\|)+", table.splitlines()[1])
    body = card(run).split("---\n", maxsplit=2)[2]
    assert "<i>" not in body.split("```")[0]


def test_invariant_9_it_holds_nothing_of_the_operators(make_run: MakeRun) -> None:
    run = make_run()
    assert leaks(card(run), run) == set()
    assert not depends_on_operator(card, run)


def test_invariant_9_broken_twin_a_card_with_an_exact_loss_is_caught(make_run: MakeRun) -> None:
    run = make_run()

    def leaky(path: Path) -> str:
        log = path / "operator.jsonl"
        return card(path) + (log.read_text(encoding="utf-8") if log.exists() else "")

    assert leaks(leaky(run), run)
    assert depends_on_operator(leaky, run)


def test_a_run_without_a_claim_says_so(make_run: MakeRun) -> None:
    text = card(make_run(private=False))
    assert "**No ε is claimed:** it was trained without privacy" in text
    assert "differential-privacy" not in head(text)["tags"]
    assert "ε, at most" not in text


def test_a_base_model_is_named_only_if_the_run_loaded_it_from_the_hub(make_run: MakeRun) -> None:
    for number, (origin, name, wanted) in enumerate(
        [
            ("hub", "openai-community/gpt2", "openai-community/gpt2"),
            ("memory", "openai-community/gpt2", "openai-community/gpt2"),
            ("memory", "gpt2", None),  # a folder's last name, or one that somebody gave it
            ("folder", "gpt2", None),
            ("new", "", None),
        ]
    ):
        facts = {"base_model": {"origin": origin, "name": name}}
        run = read_run(make_run(str(number), facts=facts))
        assert base_model_on_hub(run) == wanted
