"""One self-contained HTML page about one or several runs.

The page's public part is rendered only from `RunFacts`, by a template that is given nothing else;
the operator's part is rendered apart and put in whole, or not at all (invariant 9).
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from userdp.accounting import Accountant
from userdp.claims.headline import SPENT_SO_FAR, so_far_in_words, why_nothing
from userdp.codec import encode
from userdp.errors import UseError
from userdp.plans.small_delta import DeltaSize, size_of
from userdp.reporting.assumptions import Assumption, Grade, assumptions_of
from userdp.reporting.comparison import Comparison, compare
from userdp.reporting.constants import constants_of, sampler_in_words
from userdp.reporting.holders import DELTAS, delta_facts, fewer_examples
from userdp.reporting.markdown import escaped, fenced, visible
from userdp.reporting.meaning import FALSE_ALARMS, factor_up, meaning_of_claim, percent_up
from userdp.reporting.operator_facts import OperatorFacts
from userdp.reporting.operator_view import operator_view
from userdp.reporting.parts import parts_of_claim
from userdp.reporting.releases import released_losses
from userdp.reporting.run_facts import RunFacts
from userdp.reporting.table import MISSING, Table, table_of
from userdp.version import __version__
from userdp.vocabulary import Adjacency, delta_up, round_up

if TYPE_CHECKING:
    from jinja2 import Environment

PAGE = "report.html.j2"
OPERATOR_PART = "operator.html.j2"

_ADJACENCY = {
    Adjacency.ADD_OR_REMOVE: "adding or removing everything that one {unit} contributed",
    Adjacency.REPLACE: "exchanging everything that one {unit} contributed for anything else",
    Adjacency.ZERO_OUT: "blanking everything that one {unit} contributed",
    Adjacency.FIXED_GRAPH: "changing everything that one {unit} contributed, but not how much",
}


_WORLDS = {
    Adjacency.ADD_OR_REMOVE: "a certain {unit} never contributed",
    Adjacency.REPLACE: "a certain {unit} contributed something else",
    Adjacency.ZERO_OUT: "all that a certain {unit} contributed is blank",
    Adjacency.FIXED_GRAPH: "a certain {unit} contributed something else, of as many records",
}
_PART = {
    Adjacency.ADD_OR_REMOVE: "whether a certain {unit} took part",
    Adjacency.ZERO_OUT: "whether what a certain {unit} contributed was there",
}
_WHICH = "which of two things a certain {unit} contributed"


def render_report(
    runs: Sequence[RunFacts], *, operator: Sequence[OperatorFacts] | None = None
) -> str:
    """The page as text.

    Guarantee: with ``operator`` None the page is a function of ``runs`` only, so it shows nothing
    that the runs' ε do not cover. With it, the public part is the same, and the rest stands in one
    section that says who may see it.

    Args:
        runs: at least one, as `read_runs` gives them.
        operator: for each run, in the same order; None for a page that may be handed on.

    Raises:
        UseError: no run, or not as many operator's facts as runs.
    """
    if not runs:
        raise UseError("no run to report", hint="name one or more run folders")
    if operator is not None and len(operator) != len(runs):
        raise UseError(f"{len(runs)} runs, but the operator's facts of {len(operator)}")
    comparison = compare(runs)
    page = _environment().get_template(PAGE)
    return page.render(
        **_public(runs, comparison), operator_part=_operator_part(runs, comparison, operator)
    )


def _public(runs: Sequence[RunFacts], comparison: Comparison) -> dict[str, Any]:
    """All that the page's template is given, the operator's part apart."""
    from markupsafe import Markup

    digest = Markup('<code class="digest">{}</code>')
    assumptions = assumptions_of(runs)
    rows = [words_of(run) for run in runs]
    private = [row for row in rows if row["private"]]
    claims = [run.guarantee for run in runs if run.private]
    return {
        "rows": rows,
        "private": private,
        "unclaimed": [(run.name, why_nothing(run.claim)) for run in runs if not run.private],
        "title": rows[0]["name"] if len(rows) == 1 else f"{len(rows)} runs",
        "most_epsilon": round_up(max((claim.epsilon for claim in claims), default=0.0)),
        "most_delta": delta_up(max((claim.delta for claim in claims), default=0.0)),
        "kinds": _kinds(private),
        "comparison": comparison,
        "assumptions": assumptions,
        "claims": table_of(rows, _CLAIMS, caption="The claim of each run", key="ε at most"),
        "grades": [
            (grade, words, *_graded(assumptions, grade)) for grade, words in _GRADES.items()
        ],
        "constants": constants_of(runs),
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
        "tuned": table_of(rows, _TUNED, caption="What each plan was chosen from"),
        "released": released_losses([(run.name, loss) for run in runs for loss in run.released]),
        "ran": table_of(
            rows,
            {**_RAN, "SHA-256 of its ledger": lambda row: digest.format(row["digest"])},
            caption="Steps of each run",
        ),
        "meaning": table_of(private, _MEANING, caption=_caption(private, comparison)),
        "version": __version__,
    }


def _kinds(private: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The kinds of claim of these runs, each once: what differs, and what an attacker guesses."""
    names: dict[tuple[str, Adjacency], list[str]] = {}
    for row in private:
        names.setdefault((row["unit"], Adjacency(row["adjacency"])), []).append(row["name"])
    return [
        {
            "names": members,
            "unit": unit,
            "change": _ADJACENCY[adjacency].format(unit=unit),
            "world": _WORLDS[adjacency].format(unit=unit),
            "guess": _PART.get(adjacency, _WHICH).format(unit=unit),
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
    "Steps charged": "steps",
}
_MEANING = {
    "Run": "name",
    "… is right, where a coin would be right half the time": "best_guess",
    f"… accuses rightly, accusing wrongly {FALSE_ALARMS:.0%} of the time": "detection",
    "Both bounded by": "bounded_by",
    "Factor e^ε": "factor",
    "On a common scale (Ponomareva et al. 2023)": "tier",
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
    words = Markup("<strong>{}.</strong> <span>{}</span>")
    columns: dict[str, Callable[[Assumption], str]] = {
        "What has to be true": lambda one: words.format(one.title, one.statement),
        "Otherwise": lambda one: one.otherwise,
        "Ensured by": lambda one: _code(one.ensured),
    }
    keys = [f"assumption-{assumption.key}" for assumption in graded]
    return keys, table_of(graded, columns, caption=f"Assumptions graded {grade}")


def words_of(run: RunFacts) -> dict[str, Any]:
    """A run's public facts as words, for the page and the model card; "–" where there is none."""
    guarantee, meaning = run.guarantee, meaning_of_claim(run.claim)
    facts: dict[str, Any] = {
        "name": run.name,
        "private": run.private,
        "epsilon": round_up(guarantee.epsilon) if run.private else "not claimed",
        "sampler": sampler_in_words(run),
        "steps": f"{run.plan.steps:,}" if run.plan else MISSING,
        "attempted": f"{run.claim.steps:,} of {run.plan.steps:,}" if run.plan else MISSING,
        "gradients": MISSING if run.gradients is None else f"{run.gradients:,.0f}",
        "state": _state(run),
        "basis": _capital(run.basis or "nothing: the run has no plan"),
        "version": run.version,
        "digest": run.ledger_digest,
        "conditions": [condition.in_words for condition in run.claim.conditions],
        "spent": "" if run.claim.lineage.fixed else SPENT_SO_FAR,
        "so_far": so_far_in_words(run.claim) or "",
        "expected": round_up(guarantee.epsilon, 6) if run.private else "inf",
        "ledger_command": f"userdp account --ledger {shlex.quote(run.name)}",
        "mechanism_command": mechanism_command(run),
        "train_command": train_command(run),
    }
    if meaning is None:  # nothing is claimed
        claimed = ("delta", "unit", "adjacency", "accountant", "change")
        bounds = ("tier", "factor", "best_guess", "detection", "bounded_by")
        return facts | dict.fromkeys((*claimed, *bounds), MISSING)
    return facts | {
        "delta": delta_up(guarantee.delta),
        "unit": str(guarantee.unit),
        "adjacency": str(guarantee.adjacency),
        "accountant": guarantee.accountant,
        "change": _ADJACENCY[guarantee.adjacency].format(unit=guarantee.unit),
        "tier": meaning.tier,
        "factor": factor_up(meaning.factor),
        "best_guess": percent_up(meaning.best_guess),
        "detection": percent_up(meaning.detection),
        "bounded_by": meaning.bounded_by,
    }


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _state(run: RunFacts) -> str:
    if run.finished:
        return "complete"
    return "not finished" if run.plan is None else "interrupted, or still running"


def mechanism_command(run: RunFacts) -> str | None:
    """The command that prices the mechanism from nothing but the constants on this page."""
    plan = run.plan
    if plan is None or run.claim.mechanism is None:
        return None  # nothing is claimed; or of a tuning's winner, where choosing is priced too
    sampling = encode(plan.sampling)
    if plan.sampling.by_user:
        sampling.pop("group_size")  # of no bearing on ε, and refused by `userdp account`
    options = {"sampling": sampling.pop("kind"), **sampling}
    if plan.accountant is not Accountant.CONTOUR:
        options["accountant"] = plan.accountant
    options |= {
        "noise_multiplier": plan.noise.multiplier,
        "steps": plan.steps,
        "delta": run.guarantee.delta,
    }
    flags = (f"--{name.replace('_', '-')} {value}" for name, value in options.items())
    return f"userdp account {' '.join(flags)}"


def train_command(run: RunFacts) -> str | None:
    """``userdp train …`` with the run's plan and the settings that learning depends on.

    None of a run of `make_private`: a loop of somebody's own is repeated by no command.

    It is run in the run's folder, where ``plan.json`` and ``train.toml`` lie. It draws fresh
    cohorts and noise, so that it repeats the distribution of the weights, not the weights. STORE
    is left for the reader to fill in.
    """
    if not run.train:
        return None
    plan, flags = run.plan, ""
    if plan is not None:
        flags += " --plan plan.json"
        if size_of(plan.budget.target_delta, plan.population) is DeltaSize.TOO_LARGE:
            flags += " --allow-large-delta"
    if str(run.train.get("selection", "")).endswith("perplexity"):
        flags += " --scores scores.arrow"
    return f"userdp train STORE --out AGAIN{flags} --config train.toml"


def _operator_part(
    runs: Sequence[RunFacts], comparison: Comparison, operator: Sequence[OperatorFacts] | None
) -> Any:
    from markupsafe import Markup

    if operator is None:
        return None
    view = operator_view(runs, operator, comparison)
    # Rendered by a template with autoescape on, so what comes out is markup.
    return Markup(_environment().get_template(OPERATOR_PART).render(view=view))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("userdp.reporting", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
    )
    environment.filters["lower_first"] = lambda text: text[:1].lower() + text[1:]
    environment.filters["code"] = _code
    return environment


def render_text(template: str, values: Mapping[str, Any]) -> str:
    """A template of Markdown: all that it prints is escaped, unless it is `Ready`."""
    plain = _environment().overlay(autoescape=False, finalize=escaped)
    plain.filters = {**plain.filters, "fenced": fenced}
    return plain.get_template(template).render(**values)


def _code(text: str) -> Any:
    """Words between backticks as code; everything else escaped."""
    from markupsafe import Markup, escape

    parts = [escape(part) for part in text.split("`")]
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else part
        for number, part in enumerate(parts)
    )
