"""``userdp plan``: from a privacy and a compute budget to the best plan, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from userdp.claims.foreseen import foreseen_in_words
from userdp.cli.output import Answer
from userdp.planning.options import Declared, Goals, Machine
from userdp.reporting.drawing import require_drawing_place
from userdp.reporting.table import Table
from userdp.vocabulary import epsilon_up, round_up

if TYPE_CHECKING:
    from userdp.planning.proposal import Proposal


def plan(
    store: Path,
    /,
    *,
    goals: Annotated[Goals, Parameter(name="*")],
    declared: Annotated[Declared, Parameter(name="*")],
    machine: Annotated[Machine | None, Parameter(name="*")] = None,
    out: Path,
    norms: Path | None = None,
    model: str | None = None,
    allow_large_delta: bool = False,
    plot: Path | None = None,
    overwrite: bool = False,
) -> Answer:
    """Choose group size, cohort size, noise, and ELS or ULS, for a privacy and a compute budget.

    Of the store only its ledger is read (and, with --model, the examples that the probe measures).
    No count of it enters the plan: numbers are declared by flags, or taken from the DP answers that
    `userdp stats --epsilon` left in its ledger. What all answers there cost is taken from
    --epsilon, since the run's claim counts them.

    Args:
        store: a user store made by userdp prepare.
        goals: see Goals.
        declared: see Declared.
        machine: see Machine.
        out: the plan file to write, for userdp train --plan.
        norms: gradient norms, from userdp probe.
        model: in place of --norms: probe this model now, on held-out users. Beside --norms, with
            --hardware: the model whose cost is predicted.
        allow_large_delta: plan even where delta is not below 1 over the number of users.
        plot: draw the candidates to this file (png, pdf, svg, html).
        overwrite: replace the files at --out and --plot.
    """
    if plot is not None:
        require_drawing_place(plot, overwrite=overwrite)
    from userdp.api import plan as api

    proposal = api.plan(
        store,
        norms=norms,
        model=model,
        out=out,
        allow_large_delta=allow_large_delta,
        overwrite=overwrite,
        **asdict(declared),
        **asdict(goals),
        **asdict(machine or Machine()),
    )
    if plot is not None:
        from userdp.cli.plan_plot import draw

        draw(proposal, plot)
    charged = _charged(store)
    return Answer(
        values={
            **proposal.to_dict(),
            "out": str(out),
            "store": str(store),
            "store_epsilon_so_far": charged,
        },
        parts=_parts(proposal, out, _beside(store, proposal, charged)),
    )


def _charged(store: Path) -> float:
    """What the people of the store have been charged so far."""
    from userdp.claims import claim
    from userdp.ledger import StoreLedger

    return claim(store).guarantee.epsilon if StoreLedger(store).charges() else 0.0


def _beside(store: Path, proposal: Proposal, charged: float) -> str | None:
    """What the plan costs beside what the people of the store were charged before."""
    from userdp.ledger import StoreLedger
    from userdp.ledger.overview import share_of

    history = StoreLedger(store).history()
    if history.budget is not None:
        spent, more = share_of(history), share_of(history, proposal.plan)
        fits = "" if spent + more <= 1 else ": it would be refused"
        return (
            f"the store has a budget of epsilon {epsilon_up(history.budget.filter.epsilon)}, "
            f"of which {100 * spent:.1f} % is spent; a run of this plan takes {100 * more:.1f} "
            f"%{fits}"
        )
    if not charged:
        return None
    return (
        f"the store's ledger stands at epsilon {round_up(charged)} before this run, DP answers "
        "included; what the run costs is added to that"
    )


def _parts(proposal: Proposal, out: Path, beside: str | None) -> Iterator[Table | str]:
    budget, plan = proposal.budget, proposal.plan
    yield proposal.reason
    yield ""
    yield _table(proposal)
    yield ""
    yield f"{foreseen_in_words(proposal.prediction['claim'])}, add-or-remove"
    if budget.query_share:
        left = budget.query_share * budget.epsilon - budget.query_epsilon
        yield f"epsilon {epsilon_up(left)} more is set aside for DP answers"
    yield (
        f"clip norm {plan.clip.l2_norm:.4g}, sampling probability "
        f"{plan.denominator / plan.population:.4g} of {plan.population:,} declared "
        f"{'users' if plan.sampling.by_user else 'examples'}, noise {plan.noise_std:.4g} on the sum"
    )
    if proposal.series is not None:
        own = round_up(plan.guarantee().epsilon)
        yield (
            f"Declared in the store's ledger: {proposal.series.in_words}, epsilon "
            f"{round_up(proposal.series.guarantee().epsilon)} for all of them together (one alone: "
            f"{own}). Retrain by the calendar, never by counts; clip norm, learning rate and model "
            "may change, sampling, noise, steps and population may not"
        )
    cost = proposal.prediction.get("cost")
    if cost is not None:
        yield ""
        yield from _cost(cost)
        yield ""
    yield f"chosen from {proposal.basis}"
    for note in proposal.notes:
        yield f"note: {note}"
    yield f"Written to {out}; run it: userdp train STORE --out RUN --plan {out}"
    if beside is not None:
        yield f"note: {beside}"


def _table(proposal: Proposal) -> Table:
    """Every answer side by side: M users a step, or B examples."""
    from userdp.planning.shown import HEADINGS, candidate_rows

    rows = candidate_rows(proposal)
    return Table(
        columns=HEADINGS,
        rows=[row.cells for row in rows],
        strong=[number for number, row in enumerate(rows) if row.chosen],
        breaks=[n for n, (one, two) in enumerate(pairwise(rows)) if one.group < two.group],
    )


def _cost(cost: Mapping[str, Any]) -> Iterator[Table | str]:
    """What the plan is predicted to cost; the first method is plain training."""
    reached = "" if cost["reached"] == 1 else f", of which {cost['reached']:.0%} is assumed reached"
    yield (
        f"PREDICTED for {cost['hardware']}, not measured (figures: {cost['figures']}{reached}). "
        "batched: users share passes, as of most models; reference: one user at a time"
    )
    priced = cost["methods"][0]["price"] is not None
    yield Table(
        columns=(
            *("method", "seconds a step", "to plain", "GB a device", "device hours"),
            *(("price",) if priced else ()),
        ),
        rows=[
            (
                row["method"],
                f"{row['seconds']:.3g}",
                f"{row['ratio']:.2f}",
                f"{row['memory'] / 1e9:.3g}" + ("" if row["fits"] else " (does not fit)"),
                f"{row['device_hours']:.3g}",
                *((f"{row['price']:.4g}",) if priced else ()),
            )
            for row in cost["methods"]
        ],
    )
