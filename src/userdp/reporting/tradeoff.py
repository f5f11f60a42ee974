"""ε, loss and compute of several runs: who pays what for which loss.

The layout is that of Charles et al. 2024: loss against ε, a panel per compute budget (Figures 6
and 7), and loss against compute, a panel per ε (Figures 16 and 17), a line per algorithm. Exact
losses are operator-only, and so are these plots.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from userdp.reporting.comparison import Comparison
from userdp.reporting.curves import Plot, Series
from userdp.reporting.operator_facts import EvaluationFacts, OperatorFacts
from userdp.reporting.run_facts import RunFacts

LOSS = "loss (nats per token)"
_ALGORITHMS = ("ELS", "ULS", "GP")
_SAME_LOSS = 1e-3


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A run whose loss was measured.

    Args:
        run: its public facts, with a plan.
        loss: on held-out users.
        base: the base model's on the same users, if it was measured.
    """

    run: RunFacts
    loss: float
    base: float | None

    @property
    def algorithm(self) -> str:
        """ELS, ULS or GP."""
        assert self.run.plan is not None
        return self.run.plan.algorithm

    @property
    def budget(self) -> float:
        """The ε that was aimed at, or else the claimed one."""
        assert self.run.plan is not None
        aimed = self.run.plan.budget.target_epsilon if self.run.claim.is_of_plan else None
        return aimed or self.run.guarantee.epsilon

    @property
    def gradients(self) -> float:
        """Most gradients computed in expectation."""
        return self.run.gradients or 0.0


def trade_offs(
    runs: Sequence[RunFacts], operator: Sequence[OperatorFacts], comparison: Comparison
) -> list[Plot]:
    """The plots over runs that may be compared: one kind of claim, measured on the same people.

    Guarantee: no plot holds two units or adjacencies, nor losses on different people.
    """
    facts = {run.path: one for run, one in zip(runs, operator, strict=True)}
    plots: list[Plot] = []
    for group in comparison.groups:
        people: dict[tuple[object, ...], list[Point]] = {}
        for run in group:
            before, after = facts[run.path].before, facts[run.path].after
            if after is not None and after.loss is not None and run.plan is not None:
                point = Point(run=run, loss=after.loss, base=before.loss if before else None)
                people.setdefault(_people(run, after), []).append(point)
        for points in people.values():
            if len(points) > 1:
                plots += _plots(points, first=len(plots))
    return plots


def _people(run: RunFacts, measured: EvaluationFacts) -> tuple[object, ...]:
    return (run.store, measured.split, measured.users, measured.examples)


def _plots(points: Sequence[Point], *, first: int) -> list[Plot]:
    """Panels, if they have a line to show; else every run as a point of its own."""
    panels = [
        *_panels(
            points,
            key="by-epsilon",
            panel=lambda point: point.gradients,
            title="Loss against ε at {} gradients",
            x=lambda point: point.run.guarantee.epsilon,
            x_label="ε claimed",
        ),
        *_panels(
            points,
            key="by-compute",
            panel=lambda point: point.budget,
            title="Loss against compute at ε = {}",
            x=lambda point: point.gradients,
            x_label="gradients computed, expected",
        ),
    ]
    if panels:
        return [replace(plot, key=f"{plot.key}-{n}") for n, plot in enumerate(panels, start=first)]
    return [_scatter(points, key=f"trade-off-{first}")]


def _panels(
    points: Sequence[Point],
    *,
    key: str,
    panel: Callable[[Point], float],
    title: str,
    x: Callable[[Point], float],
    x_label: str,
) -> list[Plot]:
    """A plot for each panel with a line of two points or more, all on one scale of loss."""
    by_panel: dict[float, list[Point]] = {}
    for point in points:
        # Three digits tell panels apart: runs of one budget differ in what calibration left over.
        by_panel.setdefault(float(f"{panel(point):.3g}"), []).append(point)
    limits = _limits(points)
    plots = []
    for value, members in sorted(by_panel.items()):
        series = _series(members, x)
        if any(len(set(line.xs)) > 1 for line in series):
            plots.append(
                Plot(
                    key=key,
                    title=title.format(f"{value:,.0f}" if value >= 1000 else f"{value:g}"),
                    x_label=x_label,
                    y_label=LOSS,
                    series=tuple(series),
                    level=_base(members),
                    y_limits=limits,
                )
            )
    return plots


def _series(points: Sequence[Point], x: Callable[[Point], float]) -> list[Series]:
    """A line per algorithm, which looks the same in every panel."""
    lines = []
    for number, algorithm in enumerate(_ALGORITHMS):
        own = sorted((x(p), p.loss) for p in points if p.algorithm == algorithm)
        if own:
            xs, ys = zip(*own, strict=True)
            lines.append(Series(name=algorithm, xs=xs, ys=ys, style=number))
    return lines


def _scatter(points: Sequence[Point], *, key: str) -> Plot:
    return Plot(
        key=key,
        title="Privacy against held-out loss",
        x_label="ε claimed",
        y_label=LOSS,
        series=tuple(
            Series(name=p.run.name, xs=(p.run.guarantee.epsilon,), ys=(p.loss,)) for p in points
        ),
        level=_base(points),
        connected=False,
    )


def _base(points: Sequence[Point]) -> tuple[str, float] | None:
    """The base model's loss, if it is one number."""
    base = [point.base for point in points if point.base is not None]
    same = base and max(base) - min(base) < _SAME_LOSS * max(base)
    return ("base model", base[0]) if same else None


def _limits(points: Sequence[Point]) -> tuple[float, float]:
    values = [p.loss for p in points] + [p.base for p in points if p.base is not None]
    room = 0.08 * (max(values) - min(values) or 1.0)
    return min(values) - room, max(values) + room
