"""``userdp plan``: from a privacy and a compute budget to the best plan, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from userdp.cli.output import Answer, print_warning
from userdp.errors import UseError
from userdp.files import require_place
from userdp.planning.options import Declared, Goals
from userdp.reporting.drawing import require_drawing_place
from userdp.reporting.table import Table
from userdp.vocabulary import delta_up, round_up

if TYPE_CHECKING:
    from userdp.planning.els import ElsCell
    from userdp.planning.norms import GradientNorms
    from userdp.planning.proposal import Proposal
    from userdp.planning.uls import UlsCell


def plan(
    store: Path,
    /,
    *,
    goals: Annotated[Goals, Parameter(name="*")],
    declared: Annotated[Declared, Parameter(name="*")],
    out: Path,
    norms: Path | None = None,
    model: str | None = None,
    allow_large_delta: bool = False,
    plot: Path | None = None,
) -> Answer:
    """Choose group size, cohort size, noise, and ELS or ULS, for a privacy and a compute budget.

    Of the store only its ledger is read (and, with --model, the examples that the probe measures).
    No count of it enters the plan: numbers are declared by flags, or taken from the DP answers that
    `userdp stats --epsilon` left in its ledger; what those cost is taken from --epsilon.

    Args:
        store: a user store made by userdp prepare.
        goals: see Goals.
        declared: see Declared.
        out: the plan file to write, for userdp train --plan.
        norms: gradient norms, from userdp probe.
        model: in place of --norms: probe this model now, on held-out users.
        allow_large_delta: plan even where delta is not below 1 over the number of users.
        plot: draw the candidates to this file (png, pdf, svg, html).
    """
    require_place(out, name="plan.json")
    if plot is not None:
        require_drawing_place(plot)
    from userdp.cli.plan_inputs import gather
    from userdp.data.meta import read_meta
    from userdp.plan.small_delta import require_small_delta
    from userdp.planning.planner import propose
    from userdp.queries.ownership import require_one_owner

    require_one_owner(read_meta(store))
    measured = _norms(store, norms, model)
    request, notes = gather(store, measured, declared, goals)
    population = request.population.value
    assert population is not None
    print_warning(
        require_small_delta(
            request.privacy.delta,
            int(population),
            counted="users",
            allow_large_delta=allow_large_delta,
        )
    )
    proposal = propose(request)
    proposal = replace(proposal, notes=notes + proposal.notes)
    if plot is not None:
        from userdp.cli.plan_plot import draw

        draw(proposal, plot)
    proposal.save(out)
    if proposal.basis.startswith(("non-private", "statistics of held-out")):
        print_warning(
            f"this plan was chosen from {proposal.basis}. The claim does not cover that; plan file "
            "and report say so."
        )
    charged = _charged(store)
    return Answer(
        values={
            **proposal.to_dict(),
            "out": str(out),
            "store": str(store),
            "store_epsilon_so_far": charged,
        },
        parts=_parts(proposal, out, charged),
    )


def _charged(store: Path) -> float:
    """What the people of the store have been charged so far."""
    from userdp.claim import claim
    from userdp.ledger import StoreLedger

    return claim(store).guarantee.epsilon if StoreLedger(store).charges() else 0.0


def _norms(store: Path, path: Path | None, model: str | None) -> GradientNorms:
    """The norms of a file, or of a probe made now."""
    from userdp.planning.norms import GradientNorms, NormSource

    if (path is None) == (model is None):
        raise UseError(
            "plan needs exactly one of --norms and --model: how long gradients are decides between "
            "larger groups and larger cohorts",
            hint="measure them with userdp probe STORE --model MODEL --out norms.json",
        )
    if path is not None:
        return GradientNorms.load(path)
    from userdp.cli.progress import StepBar
    from userdp.data.store import UserStore
    from userdp.training.config import TrainConfig
    from userdp.training.probe import probe_store

    assert model is not None
    with StepBar() as bar:
        return probe_store(
            UserStore.open(store),
            TrainConfig(model=model),
            source=NormSource.HELD_OUT,
            progress=bar,
        )


def _parts(proposal: Proposal, out: Path, charged: float) -> Iterator[Table | str]:
    budget, plan = proposal.budget, proposal.plan
    yield proposal.reason
    yield ""
    yield _table(proposal)
    yield ""
    total = f"epsilon {round_up(float(proposal.prediction['epsilon']))} for training"
    if budget.releases:
        names = ", ".join(release.name for release in budget.releases)
        total += f", {budget.query_epsilon:g} for the DP answers ({names})"
    elif budget.query_share:
        total += f", {budget.query_share * budget.epsilon:g} set aside for DP answers"
    yield (
        f"{total}: {budget.epsilon:g} in all, delta {delta_up(budget.delta, 3)}, per user, "
        "add-or-remove"
    )
    yield (
        f"clip norm {plan.clip.l2_norm:.4g}, sampling probability "
        f"{plan.denominator / plan.population:.4g} of {plan.population:,} declared "
        f"{'users' if plan.sampling.by_user else 'examples'}, noise {plan.noise_std:.4g} on the sum"
    )
    yield f"chosen from {proposal.basis}"
    for note in proposal.notes:
        yield f"note: {note}"
    yield f"Written to {out}; run it: userdp train STORE --out RUN --plan {out}"
    if charged:
        yield (
            f"note: the store's ledger stands at epsilon {round_up(charged)} before this run, DP "
            "answers included; what the run costs is added to that"
        )


def _table(proposal: Proposal) -> Table:
    """Every answer side by side: M users a step, or B examples.

    ``noise`` is on each coordinate of one step's mean gradient, ``averaged`` on the mean of all T.
    """
    candidates, plan = proposal.candidates, proposal.plan
    median = candidates.els_median_rule
    best = min(cell.noise_std for cell in (candidates.uls_optimum, median) if cell is not None)
    cells: list[tuple[str, UlsCell | ElsCell, str]] = [
        ("ULS, problem (10), all G", candidates.uls_optimum, ""),
        ("ULS, Estimate-and-Double", candidates.uls_estimate_and_double, ""),
        ("ULS, Algorithm 3 as printed", candidates.uls_estimate_and_double_literal, ""),
    ]
    if median is not None:
        cells.append(("ELS, median rule", median, ""))
    breaks = [len(cells) - 1]
    measured = set(proposal.norms.group_sizes)
    cells += [("ULS, G M = B", cell, "") for cell in candidates.uls if cell.group_size in measured]
    cells += [("ELS", cell, "") for cell in candidates.els]
    breaks.append(len(cells) - 1)
    for cell in candidates.uls_other_steps:
        name = "ULS, as above" if cell.steps == plan.steps else "ULS, same B T"
        cells.append((name, cell, f"{cell.averaged_noise_std:.3g}"))
    chosen = (plan.algorithm, plan.sampling.group_size, plan.steps, plan.noise.multiplier)
    return Table(
        columns=("", "G", "M or B", "T", "sigma", "noise", "to best", "averaged"),
        rows=[
            (
                name,
                str(cell.group_size),
                f"{cell.units:.5g}",
                str(cell.steps),
                f"{cell.noise_multiplier:.4g}",
                f"{cell.noise_std:.4g}",
                f"{cell.noise_std / best:.3f}" if cell.steps == plan.steps else "",
                averaged,
            )
            for name, cell, averaged in cells
        ],
        strong=[
            number
            for number, (_, cell, _) in enumerate(cells)
            if (cell.kind, cell.group_size, cell.steps, cell.noise_multiplier) == chosen
        ],
        breaks=breaks,
    )
