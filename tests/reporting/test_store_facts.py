"""What a store's preparation adds to a claim's assumptions reaches the page, as text alone."""

from __future__ import annotations

import pytest

from tests.reporting.conftest import MakeRun, examples_plan
from userdp.claims import Lineage
from userdp.claims.parts import Condition, ConditionKind
from userdp.reporting.assumptions import Grade, assumptions_of
from userdp.reporting.html import render_report
from userdp.reporting.run_facts import read_run, read_runs


def keys(run) -> set[str]:
    return {assumption.key for assumption in assumptions_of(read_runs([run]))}


def test_the_assumption_about_owners_stands_in_the_page(make_run: MakeRun) -> None:
    words = "a record with several owners was given to the first alone"
    run = make_run(config={"store_facts": {"owners": words}})
    assert "owners" in keys(run)
    assert words in " ".join(render_report(read_runs([run])).split())
    assert "owners" not in keys(make_run("other"))


def test_text_filtered_against_private_data_is_named_and_escaped(make_run: MakeRun) -> None:
    told = [
        Condition(kind=ConditionKind.FILTERED, told=name)
        for name in ("feedbeef", "<script>alert(1)</script>")
    ]
    run = make_run(lineage=Lineage(conditions=tuple(told)))
    found = {a.key: a for a in assumptions_of(read_runs([run]))}
    assert found["filtered-against-private"].grade is Grade.CRITICAL
    page = render_report(read_runs([run]))
    assert "feedbeef" in page
    assert "<script>alert" not in page


def test_fixed_graph_and_scores_have_assumptions_of_their_own(make_run: MakeRun) -> None:
    plan = examples_plan()
    graph = make_run("g", examples_plan(fixed_graph=True))
    assert "public-graph" in keys(graph)
    scored = make_run("s", config={"selection": "highest-perplexity"})
    assert "public-scores" in keys(scored)
    assert not {"public-graph", "public-scores"} & keys(make_run("plain", plan))


@pytest.mark.parametrize("facts", [7, [], "x", {"owners": 3}, {"owners": ["no"]}])
def test_a_strange_configuration_says_nothing(make_run: MakeRun, facts: object) -> None:
    run = read_run(make_run(config={"store_facts": facts}))
    assert run.owners is None
