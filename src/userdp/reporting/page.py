"""One self-contained HTML page about one or several runs, and a sheet of A4 about one.

The public part is rendered only from `Facts`, from what the operator says of the data (`About`)
and from the claim of the store's ledger, by templates that are given nothing else; the operator's
part is rendered apart and put in whole, or not at all (invariant 9).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from userdp.claims import Claim
from userdp.claims.lineage import Lineage
from userdp.core.errors import UseError
from userdp.core.vocabulary import epsilon_up, round_up
from userdp.reporting.assumptions import assumptions_of
from userdp.reporting.drawing import MOST_SERIES, Plot, Series, image
from userdp.reporting.facts import About, Facts
from userdp.reporting.meaning import MOST_EPSILON, curves_of
from userdp.reporting.operator_part import OperatorFacts, operator_view
from userdp.reporting.rendering import delta_text, render
from userdp.version import __version__

MOST_TOLD = 5
"""Assumptions that a page tells in full; the others are one click away."""
_RATES = tuple((i / 64) ** 2 for i in range(65))
"""False-alarm rates, dense at the left, where the curves bend."""


def render_report(
    runs: Sequence[Facts],
    *,
    operator: Sequence[OperatorFacts] | None = None,
    about: About | None = None,
    store: Claim | None = None,
) -> str:
    """The page as text.

    Guarantee: with ``operator`` None the page is a function of the other arguments only, so it
    shows nothing that the runs' ε, or the store's, do not cover, but the operator's own words. With
    it, the public part is the same, and the rest stands in one section that says who may see it.

    Args:
        runs: at least one, as `read_runs` gives them.
        operator: for each run, in the same order; None for a page that may be handed on.
        about: what the operator says of the release and the data.
        store: the claim over all that was charged on the people of the store of these runs.

    Raises:
        UseError: no run, or not as many operator's facts as runs.
        FailureError: two accountants contradict each other about a claim.
    """
    if not runs:
        raise UseError("no run to report", hint="name one or more run folders")
    if operator is not None and len(operator) != len(runs):
        raise UseError(f"{len(runs)} runs, but the operator's facts of {len(operator)}")
    public, part = _public(runs, about, store), None
    if operator is not None:
        from markupsafe import Markup

        view = operator_view(runs, operator, comparable=public["comparison"].comparable)
        # Rendered by a template that escapes what it prints, so that this is markup.
        part = Markup(render("operator.html.j2", {"view": view}))
    return render("report.html.j2", {**public, "operator_part": part})


def render_summary(run: Facts, *, about: About | None = None, store: Claim | None = None) -> str:
    """One sheet about one run as HTML, which a browser prints on one page of A4.

    Guarantee and arguments: as `render_report` without an operator's part.
    """
    return render("summary.html.j2", {**_public([run], about, store), "run": run})


def _public(runs: Sequence[Facts], about: About | None, store: Claim | None) -> dict[str, Any]:
    """All that a public template is given."""
    private = [run for run in runs if run.private]
    rests = assumptions_of(runs)
    drawn = _drawn(private)
    plot = detection_plot(private)
    return {
        "runs": runs,
        "private": private,
        "about": about or About(),
        "store": store,
        "charged": store
        and {
            "epsilon": round_up(store.guarantee.epsilon),
            "delta": delta_text(store.guarantee.delta),
        },
        "comparison": compare(runs),
        "matter": rests[:MOST_TOLD],
        "others": rests[MOST_TOLD:],
        "exact": all(
            run.claim.mechanism is not None and 0 < run.guarantee.epsilon < MOST_EPSILON
            for run in drawn
        ),
        "figure": plot and {"source": image(plot), "words": plot.in_words},
        "version": __version__,
    }


def _drawn(private: Sequence[Facts]) -> list[Facts]:
    """The runs of the figure: those whose price was fixed, as many as have a colour."""
    return [one for one in private if one.claim.lineage.fixed][:MOST_SERIES]


def detection_plot(private: Sequence[Facts]) -> Plot | None:
    """Detection at most, at each rate of false alarms, by claims, chance and references.

    Guarantee: each run's curve bounds every attack, and all curves are of one kind, see
    `curves_of`. What was spent so far bounds no attack, and is not drawn.
    """
    drawn = _drawn(private)
    if not drawn:
        return None
    curves, references = curves_of([run.claim for run in drawn])
    names = [run.name if len(private) > 1 else f"this claim, ε ≤ {run.epsilon}" for run in drawn]
    named = [
        *zip(names, curves, [False] * len(curves), strict=True),
        *((f"ε = {epsilon_up(one)}", curve, True) for one, curve in references.items()),
    ]
    lines = [
        Series(
            name=name,
            xs=_RATES,
            ys=tuple(curve.max_true_positive_rate(rate) for rate in _RATES),
            reference=reference,
        )
        for name, curve, reference in named
    ]
    chance = Series(name="a coin", xs=(0.0, 1.0), ys=(0.0, 1.0), reference=True)
    return Plot(
        title="What the strongest attacker can reach",
        x_label="false alarms: accused, but took no part",
        y_label="detected, of those who took part",
        series=(*lines, chance),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """How the runs of a page relate.

    Args:
        comparable: all claimed ε are about the same unit and adjacency.
        warnings: what a reader must know before comparing; empty if all is alike.
        together: for each store with several private runs here, their ``names``, and ``epsilon``
            and ``delta`` of what anybody who sees all of them may learn: the sum of their parts.
    """

    comparable: bool
    warnings: tuple[str, ...]
    together: tuple[Mapping[str, Any], ...]


def compare(runs: Sequence[Facts]) -> Comparison:
    """Say which of the runs' ε mean the same.

    Guarantee: runs whose unit or adjacency differ are never in one sum, and `warnings` says so; so
    it does where δ or stores differ.
    """
    kinds: dict[str, list[Facts]] = {}
    people: dict[tuple[str, str], list[Facts]] = {}
    for run in runs:
        if run.private:
            kind = f"per {run.guarantee.unit} under {run.guarantee.adjacency}"
            kinds.setdefault(kind, []).append(run)
            if run.store:
                people.setdefault((run.store, kind), []).append(run)
    listed = "; ".join(f"{kind}: {', '.join(r.name for r in of)}" for kind, of in kinds.items())
    deltas = sorted({run.guarantee.delta for of in kinds.values() for run in of})
    warnings = {
        "These runs make different kinds of claim, so their ε cannot be compared, and no sum of "
        f"them bounds what they tell together. {listed}.": len(kinds) > 1,
        "These runs are on different user stores, or states of one: for somebody who is in several "
        "their ε add up, and losses measured on different people say little side by side.": len(
            {store for store, _ in people}
        )
        > 1,
        f"δ differs between these runs ({', '.join(map(delta_text, deltas))}): compare ε at one δ, "
        "with userdp account --ledger RUN --delta DELTA.": len(deltas) > 1,
    }
    return Comparison(
        comparable=len(kinds) <= 1,
        warnings=tuple(words for words, so in warnings.items() if so),
        together=tuple(_together(same) for same in people.values() if len(same) > 1),
    )


def _together(runs: Sequence[Facts]) -> dict[str, Any]:
    """The sum of what several models descend from; what more than one descends from counts once."""
    whole = sum((run.claim.lineage for run in runs), start=Lineage()).guarantee()
    return {
        "names": [run.name for run in runs],
        "epsilon": round_up(whole.epsilon),
        "delta": delta_text(whole.delta),
    }
