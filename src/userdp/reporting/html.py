"""One self-contained HTML page about one or several runs.

The page's public part is rendered only from `RunFacts`, from what the operator says of the data
(`About`) and from the claim of the store's ledger, by a template that is given nothing else; the
operator's part is rendered apart and put in whole, or not at all (invariant 9).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from userdp.claims.claims import why_nothing
from userdp.errors import UseError
from userdp.reporting.about import About
from userdp.reporting.assumptions import Assumption, Grade, assumptions_of
from userdp.reporting.comparison import Comparison, compare
from userdp.reporting.constants import constants_of, told_once
from userdp.reporting.curves import draw
from userdp.reporting.detection import detection_plot
from userdp.reporting.holders import DELTAS, delta_facts, fewer_examples
from userdp.reporting.meaning import FALSE_ALARMS
from userdp.reporting.nist import topics
from userdp.reporting.numbers import delta_text, epsilon_text, in_powers
from userdp.reporting.operator_facts import OperatorFacts
from userdp.reporting.operator_view import operator_view
from userdp.reporting.parts import parts_of_claim
from userdp.reporting.releases import released_losses
from userdp.reporting.rendering import code, environment
from userdp.reporting.run_facts import RunFacts
from userdp.reporting.store_total import StoreTotal
from userdp.reporting.table import Table, table_of
from userdp.reporting.words import change_in_words, guess_in_words, words_of, world_in_words
from userdp.version import __version__
from userdp.vocabulary import Adjacency

PAGE = "report.html.j2"
OPERATOR_PART = "operator.html.j2"
SECTIONS = {
    "claim": "the claim",
    "meaning": "meaning",
    "accountant": "accountant",
    "parts": "its parts",
    "fewer": "fewer examples",
    "delta": "δ",
    "assumptions": "assumptions",
    "base": "base model",
    "plan": "constants",
    "tuned": "tuning",
    "losses": "losses",
    "store": "the store’s total",
    "check": "check it",
}
"""The anchors that topics of NIST SP 800-226 lead to, by what a link to them says."""


def render_report(
    runs: Sequence[RunFacts],
    *,
    operator: Sequence[OperatorFacts] | None = None,
    about: About | None = None,
    store: StoreTotal | None = None,
) -> str:
    """The page as text.

    Guarantee: with ``operator`` None the page is a function of the other arguments only, so it
    shows nothing that the runs' ε, or the store's, do not cover, but the operator's own words. With
    it, the public part is the same, and the rest stands in one section that says who may see it.

    Args:
        runs: at least one, as `read_runs` gives them.
        operator: for each run, in the same order; None for a page that may be handed on.
        about: what the operator says of the release and the data.
        store: what was charged on all people of the store of these runs.

    Raises:
        UseError: no run, or not as many operator's facts as runs.
        FailureError: two accountants contradict each other about a claim.
    """
    if not runs:
        raise UseError("no run to report", hint="name one or more run folders")
    if operator is not None and len(operator) != len(runs):
        raise UseError(f"{len(runs)} runs, but the operator's facts of {len(operator)}")
    comparison = compare(runs)
    page = environment().get_template(PAGE)
    return page.render(
        **_public(runs, comparison, about or About(), store),
        operator_part=_operator_part(runs, comparison, operator),
    )


def _public(
    runs: Sequence[RunFacts], comparison: Comparison, about: About, store: StoreTotal | None
) -> dict[str, Any]:
    """All that the page's template is given, the operator's part apart."""
    assumptions = assumptions_of(runs)
    rows = [words_of(run) for run in runs]
    private = [row for row in rows if row["private"]]
    claims = [run.guarantee for run in runs if run.private]
    constants, same = told_once(constants_of(runs))
    bounded_by = {row["bounded_by"] for row in private}
    facts = {
        "rows": rows,
        "private": private,
        "about": about,
        "unclaimed": [(run.name, why_nothing(run.claim)) for run in runs if not run.private],
        "title": rows[0]["name"] if len(rows) == 1 else f"{len(rows)} runs",
        "most_epsilon": epsilon_text(max((claim.epsilon for claim in claims), default=0.0)),
        "most_delta": delta_text(max((claim.delta for claim in claims), default=0.0)),
        "kinds": _kinds(private),
        "comparison": comparison,
        "assumptions": assumptions,
        "claims": table_of(rows, _CLAIMS, caption="The claim of each run", key="ε at most"),
        "grades": [
            (grade, words, *_graded(assumptions, grade)) for grade, words in _GRADES.items()
        ],
        "constants": constants,
        "same": same,
        "bases": _bases(runs),
        "store": None if store is None else in_powers(store.claim.headline),
        "parts": [
            table
            for run in runs
            if run.private
            for table in [parts_of_claim(run.claim, name=run.name if len(runs) > 1 else "")]
            if table is not None
        ],
        "fewer": fewer_examples(runs),
        "whole_users": [
            run.name for run in runs if run.private and run.plan and run.plan.sampling.by_user
        ],
        "deltas": table_of(
            [facts for run in runs if (facts := delta_facts(run)) is not None],
            DELTAS,
            caption="δ beside the population",
        ),
        "bases_of_plans": {row["basis"] for row in rows},
        "tuned": table_of(rows, _TUNED, caption="What each plan was chosen from"),
        "accountants": table_of(private, _ACCOUNTANTS, caption="ε by two accountants"),
        "released": released_losses([(run.name, loss) for run in runs for loss in run.released]),
        "ran": table_of(rows, _RAN, caption="Steps of each run"),
        "meaning": table_of(
            private,
            # What is the same in all rows is told below the table.
            _MEANING if len(bounded_by) > 1 else {k: v for k, v in _MEANING.items() if v != _BOUND},
            caption=_caption(private, comparison),
        ),
        "bounded_by": bounded_by.pop() if len(bounded_by) == 1 else "",
        "figure": _figure(runs),
        "version": __version__,
    }
    return facts | {"levels": _levels(facts, assumptions)}


def _figure(runs: Sequence[RunFacts]) -> Any:
    """The one figure of the public part, as markup; None where nothing is claimed."""
    from markupsafe import Markup

    plot = detection_plot(runs)
    return None if plot is None else Markup(draw(plot))


def _bases(runs: Sequence[RunFacts]) -> list[dict[str, Any]]:
    """The models that the runs began from, each once, with the runs that did."""
    names: dict[Any, list[str]] = {}
    for run in runs:
        names.setdefault(run.base, []).append(run.name)
    return [{"base": base, "names": members} for base, members in names.items()]


def _levels(facts: Mapping[str, Any], assumptions: Sequence[Assumption]) -> list[Any]:
    """The topics of NIST SP 800-226 by level, each with what this page has of its answer."""
    there = {"parts": facts["parts"], "losses": facts["released"], "store": facts["store"]}
    there |= dict.fromkeys(("accountant", "fewer", "delta"), facts["private"])
    sections = {key: words for key, words in SECTIONS.items() if there.get(key, True)}
    named = {assumption.key for assumption in assumptions}
    levels: dict[str, list[Any]] = {}
    for topic in topics():
        levels.setdefault(topic.level, []).append((topic, topic.links(sections, named)))
    return list(levels.items())


def _kinds(private: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The kinds of claim of these runs, each once: what differs, and what an attacker guesses."""
    names: dict[tuple[str, Adjacency], list[str]] = {}
    for row in private:
        names.setdefault((row["unit"], Adjacency(row["adjacency"])), []).append(row["name"])
    return [
        {
            "names": members,
            "unit": unit,
            "change": change_in_words(unit, adjacency),
            "world": world_in_words(unit, adjacency),
            "guess": guess_in_words(unit, adjacency),
        }
        for (unit, adjacency), members in names.items()
    ]


def _caption(private: Sequence[Mapping[str, Any]], comparison: Comparison) -> str:
    """Of the table of what an attacker can do at most."""
    guess = "which of its two worlds it is from"
    if private and comparison.comparable:
        guess = _kinds(private)[0]["guess"]
    return f"At most, whoever sees the model and guesses {guess} …"


_CLAIMS = {
    "Run": "name",
    "ε at most": "epsilon",
    "δ": "delta",
    "Unit": "unit",
    "Adjacency": "adjacency",
    "Sampler": "sampler",
    "Accountant": "accountant",
    "Steps": "steps",
}
_BOUND = "bounded_by"
_MEANING = {
    "Run": "name",
    "… is right, where a coin would be right half the time": "best_guess",
    f"… accuses rightly, accusing wrongly {FALSE_ALARMS:.0%} of the time": "detection",
    "Both bounded by": _BOUND,
    "Factor exp(ε)": "factor",
    "On a common scale (Ponomareva et al. 2023)": "tier",
}
_ACCOUNTANTS = {
    "Run": "name",
    "Accountant": "accountant",
    "ε at most": "epsilon",
    "By the second": "second",
    "Why they differ, or why there is none": "second_why",
}
_TUNED = {"Run": "name", "Its plan was chosen from": "basis"}
_RAN = {
    "Run": "name",
    "Steps attempted": "attempted",
    "State": "state",
    "Gradients computed, at most, in expectation": "gradients",
    "userdp": "version",
}
_GRADES = {
    Grade.CRITICAL: "If one of these is false, the claimed ε does not hold.",
    Grade.THEORETICAL: "Known gaps between proof and machine; no way to use them is known to us.",
    Grade.NEGLIGIBLE: "Bounded far below the digits shown, or without bearing on ε.",
}


def _graded(assumptions: Sequence[Assumption], grade: Grade) -> tuple[list[str], Table]:
    """The keys of the assumptions of a grade, which links lead to, and their table."""
    from markupsafe import Markup

    graded = [assumption for assumption in assumptions if assumption.grade is grade]
    words = Markup('<strong>{}.</strong> {} <span class="quiet">Otherwise: {}</span>')
    columns: dict[str, Callable[[Assumption], str]] = {
        "What has to be true, and what follows otherwise": lambda one: words.format(
            one.title, one.statement, one.otherwise
        ),
        "Ensured by": lambda one: code(one.ensured),
    }
    keys = [f"assumption-{assumption.key}" for assumption in graded]
    return keys, table_of(graded, columns, caption=f"Assumptions graded {grade}")


def _operator_part(
    runs: Sequence[RunFacts], comparison: Comparison, operator: Sequence[OperatorFacts] | None
) -> Any:
    from markupsafe import Markup

    if operator is None:
        return None
    view = operator_view(runs, operator, comparison)
    # Rendered by a template with autoescape on, so what comes out is markup.
    return Markup(environment().get_template(OPERATOR_PART).render(view=view))
