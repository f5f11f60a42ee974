"""The operator's part of the page: curves, cohorts, held-out losses, audits and the cost.

No ε covers any of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from userdp.reporting.audit_facts import Attack, AuditFacts
from userdp.reporting.comparison import Comparison
from userdp.reporting.curves import Plot, Series, draw, points
from userdp.reporting.operator_facts import EvaluationFacts, OperatorFacts
from userdp.reporting.run_facts import RunFacts
from userdp.reporting.table import table_of
from userdp.reporting.tradeoff import LOSS, trade_offs
from userdp.vocabulary import round_up

if TYPE_CHECKING:
    pass

_MOST_MARKS = 15
"""Lines with more points have no marks: these would run into each other."""
_MOST_LINES = 6
"""More lines than the page has colours would not be told apart."""


class _Pair(NamedTuple):
    run: RunFacts
    facts: OperatorFacts


def operator_view(
    runs: Sequence[RunFacts], operator: Sequence[OperatorFacts], comparison: Comparison
) -> dict[str, Any]:
    """What the operator's template is given: tables and plots; runs without facts have no line."""
    pairs = [_Pair(run, facts) for run, facts in zip(runs, operator, strict=True)]
    shared = "" if comparison.comparable else " Only runs with one kind of claim share a plot."
    plots = [
        *(
            (plot, "Held-out loss of runs that were measured on the same people." + shared)
            for plot in trade_offs(runs, operator, comparison)
        ),
        (
            _plot("training", "Training loss", LOSS, pairs, _training),
            "Mean loss of the units drawn at each step, before their step's update: exact, and "
            "noisy because each step draws others.",
        ),
        (
            _plot("held-out", "Held-out loss", LOSS, pairs, _held_out),
            "Loss on held-out users, who are never trained on. Step 0 is the base model.",
        ),
        (
            _plot("units", "Cohort sizes", "units drawn", pairs, _units),
            "Users (ULS) or examples (ELS) drawn at each step. Whoever knows it knows how many "
            "people there are.",
        ),
    ]
    audits = [(run, audit) for run, facts in pairs for audit in facts.audited.bounds]
    attacks = [(run.name, attack) for run, facts in pairs for attack in facts.audited.attacks]
    splits = [(run.name, one) for run, facts in pairs for one in facts.final]
    return {
        "losses": table_of(
            pairs, _LOSSES, caption="Loss on held-out users, in nats per token", key="After"
        ),
        "audits": audits
        and table_of(
            audits,
            _AUDITS,
            caption="Lower bounds on ε beside the claimed upper bound",
            key="ε at least",
        ),
        "attacks": attacks
        and table_of(
            attacks,
            _ATTACKS,
            caption="User inference: telling users who were trained on from others, by the "
            "released model",
        ),
        "splits": splits
        and table_of(
            splits,
            _SPLITS,
            caption="Losses by split, before and after, with quantiles of the users' own losses",
        ),
        "cohorts": table_of(pairs, _COHORTS, caption="Cohorts, as drawn"),
        "cost": table_of(pairs, _COST, caption="What it cost"),
        "alarms": [
            *((run.name, what) for run, facts in pairs for what in facts.audited.flagged),
            *((run.name, _alarm(run, audit)) for run, audit in audits if _broken(run, audit)),
        ],
        "figures": [_figure(plot, caption) for plot, caption in plots if plot is not None],
    }


def _training(pair: _Pair) -> list[tuple[float, float | None]]:
    return [(step.step, step.loss) for step in pair.facts.steps]


def _held_out(pair: _Pair) -> list[tuple[float, float | None]]:
    last = pair.run.claim.steps
    return [(last if one.step is None else one.step, one.loss) for one in pair.facts.curve]


def _units(pair: _Pair) -> list[tuple[float, float | None]]:
    return [(step.step, step.units) for step in pair.facts.steps]


def _plot(
    key: str,
    title: str,
    y_label: str,
    pairs: Sequence[_Pair],
    read: Callable[[_Pair], list[tuple[float, float | None]]],
) -> Plot | None:
    """A line for each run that has a point; None where no run has."""
    lines = [(pair.run.name, points(read(pair))) for pair in pairs]
    series = [
        Series(name=name, xs=xs, ys=ys, marked=len(xs) <= _MOST_MARKS)
        for name, (xs, ys) in lines
        if xs
    ]
    if not series:
        return None
    cut = len(series) - _MOST_LINES
    return Plot(
        key=key,
        title=title if cut <= 0 else f"{title} (the first {_MOST_LINES} runs; {cut} left out)",
        x_label="step",
        y_label=y_label,
        series=tuple(series[:_MOST_LINES]),
    )


def _figure(plot: Plot, caption: str) -> dict[str, str]:
    """A drawn plot and its caption."""
    from markupsafe import Markup

    # draw() escapes every name that it puts into the SVG.
    return {"title": plot.title, "caption": caption, "svg": Markup(draw(plot))}


def _change(pair: _Pair) -> str | None:
    before, after = pair.facts.before, pair.facts.after
    if before is None or after is None or before.loss is None or after.loss is None:
        return None
    return f"{after.loss - before.loss:+.4f}".replace("-", "−")


def _drawn(pair: _Pair) -> str | None:
    units = [step.units for step in pair.facts.steps if step.units is not None]
    if not units:
        return None
    return f"{min(units):,} / {sum(units) / len(units):,.1f} / {max(units):,}"


def _clipped(pair: _Pair) -> str | None:
    parts = [step.clipped_fraction for step in pair.facts.steps]
    known = [part for part in parts if part is not None]
    return f"{100 * sum(known) / len(known):.1f} %" if known else None


def _claimed(run: RunFacts) -> str:
    return round_up(run.guarantee.epsilon) if run.private else "not claimed"


def _broken(run: RunFacts, audit: AuditFacts) -> bool:
    """Whether an audit's lower bound contradicts the claimed upper bound."""
    return run.private and audit.epsilon_lower > run.guarantee.epsilon


def _alarm(run: RunFacts, audit: AuditFacts) -> str:
    return (
        f"{audit.method}: ε is at least {audit.epsilon_lower:.4g} (confidence "
        f"{100 * audit.confidence:g} %), and {_claimed(run)} is claimed"
    )


def _verdict(one: tuple[RunFacts, AuditFacts]) -> str:
    run, audit = one
    power = audit.power_epsilon
    if _broken(run, audit):
        return (
            "contradicts the claim: at this confidence, the run leaks more than is claimed. Do not "
            "release it before this is explained."
        )
    if not run.private:
        return "nothing is claimed that it could contradict"
    if power is not None and power < run.guarantee.epsilon:
        return f"agrees with the claim; it could not have shown more than ε = {power:.3g}"
    return "agrees with the claim"


def _people(one: EvaluationFacts | None) -> str | None:
    if one is None or one.users is None or one.examples is None:
        return None
    return f"{one.users:,} users, {one.examples:,} examples"


def _text(value: float | None, digits: int = 4) -> str | None:
    return None if value is None else f"{value:,.{digits}f}"


_RUN: dict[str, Callable[[_Pair], str | None]] = {"Run": lambda pair: pair.run.name}
_LOSSES = _RUN | {
    "ε at most": lambda pair: _claimed(pair.run),
    "Base model": lambda pair: _text(pair.facts.before and pair.facts.before.loss),
    "After": lambda pair: _text(pair.facts.after and pair.facts.after.loss),
    "Change": _change,
    "Perplexity after": lambda pair: _text(pair.facts.after and pair.facts.after.perplexity, 1),
    "After, mean over users": lambda pair: _text(pair.facts.after and pair.facts.after.user_loss),
    "Measured on": lambda pair: _people(pair.facts.after),
}
_COHORTS = _RUN | {
    "Steps logged": lambda pair: f"{len(pair.facts.steps):,}",
    "Units expected, from the plan": lambda pair: _text(
        pair.run.plan and pair.run.plan.denominator, 1
    ),
    "Units drawn: least / mean / most": _drawn,
    "Clipped, mean": _clipped,
    "Not finite, counted as zero": lambda pair: (
        f"{sum(step.non_finite for step in pair.facts.steps):,}"
    ),
}
_COST = _RUN | {
    "Gradients computed": lambda pair: f"{pair.facts.gradients:,}" if pair.facts.steps else None,
    "Seconds in steps": lambda pair: _text(pair.facts.seconds, 1) if pair.facts.steps else None,
    "Seconds per step": lambda pair: (
        _text(pair.facts.seconds / len(pair.facts.steps), 3) if pair.facts.steps else None
    ),
    "Passes halved, memory ran out": lambda pair: (
        f"{halved:,}" if (halved := sum(step.halvings for step in pair.facts.steps)) else None
    ),
    "Machine": lambda pair: pair.facts.machine,
}
_AUDITS: dict[str, Callable[[tuple[RunFacts, AuditFacts]], str | None]] = {
    "Run": lambda one: one[0].name,
    "Method": lambda one: one[1].method,
    "ε at least": lambda one: f"{one[1].epsilon_lower:.4g}",
    "Confidence": lambda one: f"{100 * one[1].confidence:g} %",
    "ε claimed, at most": lambda one: _claimed(one[0]),
    "Could have shown": lambda one: (
        None if one[1].power_epsilon is None else f"{one[1].power_epsilon:.3g}"
    ),
    "Verdict": _verdict,
}
_ATTACKS: dict[str, Callable[[tuple[str, Attack]], str]] = {
    "Run": lambda one: one[0],
    "Against": lambda one: one[1].against,
    "AUC (0.5 is chance)": lambda one: f"{one[1].auc:.3f}",
    "Its interval": lambda one: f"{one[1].auc_low:.3f} to {one[1].auc_high:.3f}",
    "Members found": lambda one: (
        f"{100 * one[1].tpr_at_low_fpr:.1f} %, accusing {100 * one[1].low_fpr:g} % of others"
    ),
    "Verdict": lambda one: (
        "no better than chance"
        if one[1].auc_low <= 0.5 <= one[1].auc_high
        else "differs from chance"
    ),
}
_SPLITS: dict[str, Callable[[tuple[str, EvaluationFacts]], str | None]] = {
    "Run": lambda one: one[0],
    "Split": lambda one: one[1].split,
    "Model": lambda one: "after" if one[1].step is None else "before",
    "Loss per token": lambda one: _text(one[1].loss),
    "Perplexity": lambda one: _text(one[1].perplexity, 1),
    "Mean over users": lambda one: _text(one[1].user_loss),
    "Users, p5": lambda one: _text(one[1].user_quantiles.get("p5"), 3),
    "Users, p50": lambda one: _text(one[1].user_quantiles.get("p50"), 3),
    "Users, p95": lambda one: _text(one[1].user_quantiles.get("p95"), 3),
    "Measured on": lambda one: _people(one[1]),
}
