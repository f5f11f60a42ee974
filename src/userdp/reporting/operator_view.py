"""The operator's part of the page: curves, cohorts, held-out losses. No ε covers any of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from userdp.guarantees import round_up
from userdp.reporting.comparison import Comparison
from userdp.reporting.curves import Plot, Series, draw, points
from userdp.reporting.operator_facts import OperatorFacts
from userdp.reporting.run_facts import RunFacts

if TYPE_CHECKING:
    from markupsafe import Markup

_LOSS = "loss (nats per token)"
_SMOOTHED = 60


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
    units: str
    clipped: str
    non_finite: str


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
    figures: tuple[Figure, ...]


def operator_view(
    runs: Sequence[RunFacts], operator: Sequence[OperatorFacts], comparison: Comparison
) -> OperatorView:
    """Tables and plots of the operator's facts; runs that have none are left out of plots."""
    plots = [
        (
            _training(runs, operator),
            "Mean loss of the units drawn at each step, before their step's update: exact, and "
            "noisy because each step draws others.",
        ),
        (
            _held_out(runs, operator),
            "Loss on held-out users, who are never trained on. Step 0 is the base model.",
        ),
        *(
            (
                _trade_off(group, runs, operator, number),
                "Held-out loss of each run against its claimed ε. "
                + (
                    ""
                    if comparison.comparable
                    else "Only runs with one kind of claim share a plot."
                ),
            )
            for number, group in enumerate(comparison.groups)
        ),
    ]
    return OperatorView(
        rows=tuple(_row(run, facts) for run, facts in zip(runs, operator, strict=True)),
        figures=tuple(_figure(plot, caption) for plot, caption in plots if plot is not None),
    )


def _training(runs: Sequence[RunFacts], operator: Sequence[OperatorFacts]) -> Plot | None:
    found = []
    for run, facts in zip(runs, operator, strict=True):
        xs, ys = points([(step.step, step.loss) for step in facts.steps])
        if xs:
            found.append(Series(name=run.name, xs=xs, ys=ys, marked=len(xs) <= _SMOOTHED // 4))
    return _plot("training", "Training loss", "step", found)


def _held_out(runs: Sequence[RunFacts], operator: Sequence[OperatorFacts]) -> Plot | None:
    found = []
    for run, facts in zip(runs, operator, strict=True):
        last = run.claim.steps
        xs, ys = points([(e.step if e.step is not None else last, e.loss) for e in facts.curve])
        if xs:
            found.append(Series(name=run.name, xs=xs, ys=ys))
    return _plot("held-out", "Held-out loss", "step", found)


def _trade_off(
    group: Sequence[RunFacts],
    runs: Sequence[RunFacts],
    operator: Sequence[OperatorFacts],
    number: int,
) -> Plot | None:
    by_run = {run.path: facts for run, facts in zip(runs, operator, strict=True)}
    found, base = [], []
    for run in group:
        facts = by_run[run.path]
        if facts.after is not None:
            epsilon = (run.guarantee.epsilon,)
            found.append(Series(name=run.name, xs=epsilon, ys=(facts.after.loss,)))
        if facts.before is not None:
            base.append(facts.before.loss)
    if len(found) < 2:
        return None
    same = base and max(base) - min(base) < 1e-3 * max(base)
    return Plot(
        key=f"trade-off-{number}",
        title="Privacy against held-out loss",
        x_label="ε claimed",
        y_label=_LOSS,
        series=tuple(found),
        level=("base model", base[0]) if same else None,
        connected=False,
    )


def _plot(key: str, title: str, x_label: str, series: Sequence[Series]) -> Plot | None:
    if not series:
        return None
    return Plot(key=key, title=title, x_label=x_label, y_label=_LOSS, series=tuple(series))


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
        measured_on=(
            f"{after.users:,} users, {after.examples:,} examples"
            if after and after.users is not None and after.examples is not None
            else "–"
        ),
        steps=f"{len(facts.steps):,}",
        units=(
            f"{min(units):,} / {sum(units) / len(units):,.1f} / {max(units):,}" if units else "–"
        ),
        clipped=f"{100 * sum(clipped) / len(clipped):.1f} %" if clipped else "–",
        non_finite=f"{sum(step.non_finite for step in facts.steps):,}",
    )


def _text(value: float | None, digits: int = 4) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:+.4f}".replace("-", "−")
