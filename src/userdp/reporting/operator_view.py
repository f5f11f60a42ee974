"""The operator's part of the page: curves, cohorts, held-out losses, audits and the cost.

No ε covers any of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from userdp.reporting.audit_facts import Attack, AuditFacts
from userdp.reporting.comparison import Comparison
from userdp.reporting.curves import Plot, Series, draw, points
from userdp.reporting.operator_facts import EvaluationFacts, OperatorFacts
from userdp.reporting.run_facts import RunFacts
from userdp.reporting.tradeoff import LOSS, trade_offs
from userdp.vocabulary import round_up

if TYPE_CHECKING:
    from markupsafe import Markup

_SMOOTHED = 60
QUANTILES = ("p5", "p50", "p95")
_MOST_LINES = 6
"""More lines than the page has colours would not be told apart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorRow:
    """One run's exact numbers, formatted."""

    name: str
    epsilon: str
    before: str
    after: str
    change: str
    perplexity: str
    user_loss: str
    measured_on: str
    steps: str
    expected: str
    units: str
    clipped: str
    non_finite: str
    machine: str
    seconds: str
    per_step: str
    gradients: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitRow:
    """One measurement made after a run, formatted; ``quantiles`` are those of `QUANTILES`."""

    name: str
    split: str
    model: str
    loss: str
    perplexity: str
    user_loss: str
    quantiles: tuple[str, ...]
    measured_on: str


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditRow:
    """One audit beside the claim, formatted; ``broken`` says that they contradict each other."""

    name: str
    method: str
    lower: str
    confidence: str
    claimed: str
    power: str
    verdict: str
    broken: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class AttackRow:
    """The attack on a released model, formatted."""

    name: str
    against: str
    auc: str
    interval: str
    found: str
    verdict: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A drawn plot and its caption."""

    title: str
    caption: str
    svg: Markup


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorView:
    """What the operator's template is given."""

    rows: tuple[OperatorRow, ...]
    splits: tuple[SplitRow, ...]
    audits: tuple[AuditRow, ...]
    attacks: tuple[AttackRow, ...]
    alarms: tuple[tuple[str, str], ...]
    figures: tuple[Figure, ...]
    quantiles: tuple[str, ...] = QUANTILES


def operator_view(
    runs: Sequence[RunFacts], operator: Sequence[OperatorFacts], comparison: Comparison
) -> OperatorView:
    """Tables and plots of the operator's facts; runs that have none are left out of plots."""
    pairs = list(zip(runs, operator, strict=True))
    shared = "" if comparison.comparable else " Only runs with one kind of claim share a plot."
    plots = [
        *(
            (plot, "Held-out loss of runs that were measured on the same people." + shared)
            for plot in trade_offs(runs, operator, comparison)
        ),
        (
            _training(pairs),
            "Mean loss of the units drawn at each step, before their step's update: exact, and "
            "noisy because each step draws others.",
        ),
        (
            _held_out(pairs),
            "Loss on held-out users, who are never trained on. Step 0 is the base model.",
        ),
        (
            _units(pairs),
            "Users (ULS) or examples (ELS) drawn at each step. Who knows it knows how many people "
            "there are.",
        ),
    ]
    audits = tuple(audit_row(run, found) for run, facts in pairs for found in facts.audits)
    return OperatorView(
        rows=tuple(_row(run, facts) for run, facts in pairs),
        splits=tuple(_split_row(run, found) for run, facts in pairs for found in facts.final),
        audits=audits,
        attacks=tuple(_attack_row(run, attack) for run, facts in pairs for attack in facts.attacks),
        alarms=(
            *((run.name, what) for run, facts in pairs for what in facts.flagged),
            *(
                (
                    row.name,
                    f"{row.method}: ε is at least {row.lower} (confidence {row.confidence}), and "
                    f"{row.claimed} is claimed",
                )
                for row in audits
                if row.broken
            ),
        ),
        figures=tuple(_figure(plot, caption) for plot, caption in plots if plot is not None),
    )


_Pairs = Sequence[tuple[RunFacts, OperatorFacts]]


def _training(pairs: _Pairs) -> Plot | None:
    found = []
    for run, facts in pairs:
        xs, ys = points([(step.step, step.loss) for step in facts.steps])
        if xs:
            found.append(Series(name=run.name, xs=xs, ys=ys, marked=len(xs) <= _SMOOTHED // 4))
    return _plot("training", "Training loss", LOSS, found)


def _held_out(pairs: _Pairs) -> Plot | None:
    found = []
    for run, facts in pairs:
        last = run.claim.steps
        xs, ys = points([(e.step if e.step is not None else last, e.loss) for e in facts.curve])
        if xs:
            found.append(Series(name=run.name, xs=xs, ys=ys))
    return _plot("held-out", "Held-out loss", LOSS, found)


def _units(pairs: _Pairs) -> Plot | None:
    found = []
    for run, facts in pairs:
        drawn = [(step.step, None if step.units is None else float(step.units))
                 for step in facts.steps]  # fmt: skip
        xs, ys = points(drawn)
        if xs:
            found.append(Series(name=run.name, xs=xs, ys=ys, marked=len(xs) <= _SMOOTHED // 4))
    return _plot("units", "Cohort sizes", "units drawn", found)


def _plot(key: str, title: str, y_label: str, series: Sequence[Series]) -> Plot | None:
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


def _figure(plot: Plot, caption: str) -> Figure:
    from markupsafe import Markup

    # draw() escapes every name that it puts into the SVG.
    return Figure(title=plot.title, caption=caption.strip(), svg=Markup(draw(plot)))


def _row(run: RunFacts, facts: OperatorFacts) -> OperatorRow:
    before, after = facts.before, facts.after
    units = [step.units for step in facts.steps if step.units is not None]
    clipped = [step.clipped_fraction for step in facts.steps if step.clipped_fraction is not None]
    return OperatorRow(
        name=run.name,
        epsilon=round_up(run.guarantee.epsilon) if run.private else "not claimed",
        before=_text(before.loss if before else None),
        after=_text(after.loss if after else None),
        change=_signed(after.loss - before.loss if after and before else None),
        perplexity=_text(after.perplexity if after else None, 1),
        user_loss=_text(after.user_loss if after else None),
        measured_on=_people(after),
        steps=f"{len(facts.steps):,}",
        expected=f"{run.plan.denominator:,.1f}" if run.plan else "–",
        units=(
            f"{min(units):,} / {sum(units) / len(units):,.1f} / {max(units):,}" if units else "–"
        ),
        clipped=f"{100 * sum(clipped) / len(clipped):.1f} %" if clipped else "–",
        non_finite=f"{sum(step.non_finite for step in facts.steps):,}",
        machine=facts.machine or "–",
        seconds=_text(facts.seconds, 1) if facts.steps else "–",
        per_step=_text(facts.seconds / len(facts.steps), 3) if facts.steps else "–",
        gradients=f"{facts.gradients:,}" if facts.steps else "–",
    )


def _split_row(run: RunFacts, found: EvaluationFacts) -> SplitRow:
    return SplitRow(
        name=run.name,
        split=found.split,
        model="after" if found.step is None else "before",
        loss=_text(found.loss),
        perplexity=_text(found.perplexity, 1),
        user_loss=_text(found.user_loss),
        quantiles=tuple(_text(found.user_quantiles.get(name), 3) for name in QUANTILES),
        measured_on=_people(found),
    )


def audit_row(run: RunFacts, audit: AuditFacts) -> AuditRow:
    """An audit's lower bound beside the claimed upper bound, and what follows."""
    claimed, power = run.guarantee.epsilon, audit.power_epsilon
    broken = run.private and audit.epsilon_lower > claimed
    if broken:
        verdict = (
            "contradicts the claim: at this confidence, the run leaks more than is claimed. Do not "
            "release it before this is explained."
        )
    elif not run.private:
        verdict = "nothing is claimed that it could contradict"
    elif power is not None and power < claimed:
        verdict = f"agrees with the claim; it could not have shown more than ε = {power:.3g}"
    else:
        verdict = "agrees with the claim"
    return AuditRow(
        name=run.name,
        method=audit.method,
        lower=f"{audit.epsilon_lower:.4g}",
        confidence=f"{100 * audit.confidence:g} %",
        claimed=round_up(claimed) if run.private else "not claimed",
        power="–" if power is None else f"{power:.3g}",
        verdict=verdict,
        broken=broken,
    )


def _attack_row(run: RunFacts, attack: Attack) -> AttackRow:
    chance = attack.low <= 0.5 <= attack.high
    return AttackRow(
        name=run.name,
        against=attack.against,
        auc=f"{attack.auc:.3f}",
        interval=f"{attack.low:.3f} to {attack.high:.3f}",
        found=f"{100 * attack.found:.1f} %, accusing {100 * attack.false_alarms:g} % of others",
        verdict="no better than chance" if chance else "differs from chance",
    )


def _people(found: EvaluationFacts | None) -> str:
    if found is None or found.users is None or found.examples is None:
        return "–"
    return f"{found.users:,} users, {found.examples:,} examples"


def _text(value: float | None, digits: int = 4) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.4f}".replace("-", "−")
