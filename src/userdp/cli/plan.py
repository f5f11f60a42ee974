"""``userdp plan``: from a privacy and a compute budget to the best plan, and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.table import Table

from userdp.cli.output import emit, print_warning, stderr
from userdp.errors import UseError
from userdp.reporting.drawing import require_drawing_place
from userdp.vocabulary import delta_up, round_up

if TYPE_CHECKING:
    from userdp.planning.norms import GradientNorms
    from userdp.planning.proposal import Proposal


def plan(
    store: Path,
    /,
    *,
    budget: float,
    steps: int,
    epsilon: float,
    out: Path,
    norms: Path | None = None,
    model: str | None = None,
    population: int | None = None,
    population_examples: int | None = None,
    median_examples: int | None = None,
    delta: float | None = None,
    query_share: float | None = None,
    algorithm: Literal["auto", "uls", "els"] = "auto",
    l2_clip_norm: float | None = None,
    choose_steps: bool = False,
    extrapolate: bool = False,
    most_noise: float = 0.1,
    unsafe_exact_counts: bool = False,
    allow_large_delta: bool = False,
    plot: Path | None = None,
    json: bool = False,
) -> None:
    """Choose group size, cohort size, noise, and ELS or ULS, for a privacy and a compute budget.

    Of the store only its ledger is read (and, with --model, the examples that the probe measures).
    No count of it enters the plan: numbers are declared by flags, or taken from the DP answers that
    `userdp stats --epsilon` left in its ledger; what those cost is taken from --epsilon.

    Args:
        store: a user store made by userdp prepare.
        budget: B, gradients per step, in expectation.
        steps: T, noisy updates.
        epsilon: of everything together: training, and the DP answers that the plan is made from.
        out: the plan file to write, for userdp train --plan.
        norms: gradient norms, from userdp probe.
        model: in place of --norms: probe this model now, on held-out users.
        population: the declared nominal number of users: a public constant that you choose.
        population_examples: the declared nominal number of examples of all users together; for ELS.
            Without it every user is taken to hold as many as the cap.
        median_examples: the declared median of examples per user: the group size of ELS.
        delta: in (0, 1); by default n^-1.1 of the declared --population-examples or --population.
        query_share: the share of epsilon set aside for DP answers, fixed before the first of them;
            by default exactly what the answers used cost.
        algorithm: auto takes the one that adds less noise.
        l2_clip_norm: by default the typical norm of what is clipped.
        choose_steps: T may change at the same B times T: the most steps whose noise, averaged over
            all updates, is within 10% of the least.
        extrapolate: allow group sizes beyond the largest measured, with its norm.
        most_noise: refuse plans with more noise than this on a coordinate of the mean gradient,
            in units of the norm of an example's gradient.
        unsafe_exact_counts: read the store's exact counts. The plan and the report then say that it
            was chosen from non-private statistics: no epsilon covers that choice.
        allow_large_delta: plan even where delta is not below 1 over the number of users.
        plot: draw the candidates to this file (png, pdf, svg, html).
        json: print one JSON object on stdout.
    """
    _check_places(out, plot)
    from userdp.cli.plan_inputs import gather
    from userdp.data.meta import read_meta
    from userdp.plan.small_delta import require_small_delta
    from userdp.planning.budget import PrivacyBudget
    from userdp.planning.planner import Request, propose

    meta = read_meta(store)
    if meta.ownership["adjacency"] != "add-or-remove":
        raise UseError(
            "this store's records have several owners, and a plan's epsilon would be claimed per "
            f"user under add-or-remove adjacency, not under {meta.ownership['adjacency']}",
            hint="prepare a store with --owners first",
        )
    measured = _norms(store, norms, model)
    inputs = gather(
        store,
        measured,
        population=population,
        population_examples=population_examples,
        median_examples=median_examples,
        delta=delta,
        epsilon=epsilon,
        query_share=query_share,
        exact_counts=unsafe_exact_counts,
    )
    assert inputs.population.value is not None
    warning = require_small_delta(
        inputs.delta,
        int(inputs.population.value),
        counted="users",
        allow_large_delta=allow_large_delta,
    )
    if warning is not None:
        print_warning(warning)
    proposal = propose(
        Request(
            privacy=PrivacyBudget(
                epsilon=epsilon,
                delta=inputs.delta,
                releases=inputs.releases,
                query_share=query_share,
            ),
            compute=budget,
            steps=steps,
            norms=measured,
            population=inputs.population,
            population_examples=inputs.population_examples,
            median_examples=inputs.median_examples,
            l2_clip_norm=l2_clip_norm,
            algorithm=None if algorithm == "auto" else algorithm,
            choose_steps=choose_steps,
            extrapolate=extrapolate,
            most_noise=most_noise,
        )
    )
    proposal = replace(proposal, notes=inputs.notes + proposal.notes)
    if plot is not None:
        from userdp.cli.plan_plot import draw

        draw(proposal, plot)
    proposal.save(out)
    if proposal.basis.startswith(("non-private", "statistics of held-out")):
        stderr.print(
            f"[bold yellow]warning:[/] this plan was chosen from {proposal.basis}. The claim does "
            "not cover that; plan file and report say so.",
            soft_wrap=True,
        )
    charged = _charged(store)
    result: dict[str, Any] = {
        **proposal.to_dict(),
        "out": str(out),
        "store": str(store),
        "store_epsilon_so_far": charged,
    }

    def show(console: Console) -> None:
        _print(console, proposal, out)
        if charged:
            console.print(
                f"note: the store's ledger stands at epsilon {round_up(charged)} before this run, "
                "DP answers included; what the run costs is added to that",
                markup=False,
                soft_wrap=True,
            )

    emit(result, json=json, render=show)


def _check_places(out: Path, plot: Path | None) -> None:
    """Refuse places that cannot be written before anything is computed."""
    if not out.parent.is_dir():
        raise UseError(f"no folder at {out.parent} to put {out.name} in")
    if out.is_dir():
        raise UseError(f"{out} is a folder, and a file is to be written there")
    if plot is not None:
        require_drawing_place(plot)


def _charged(store: Path) -> float:
    """What the people of the store have been charged so far."""
    from userdp.ledger import StoreLedger, claim

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


def _print(console: Console, proposal: Proposal, out: Path) -> None:
    budget, plan = proposal.budget, proposal.plan
    console.print(f"[bold]{plan.algorithm}[/]", end=" ")
    console.print(proposal.reason.partition(" ")[2], markup=False, soft_wrap=True)
    console.print()
    console.print(_table(proposal))
    console.print()
    total = f"epsilon {round_up(float(proposal.prediction['epsilon']))} for training"
    if budget.releases:
        total += (
            f", {budget.query_epsilon:g} for the DP answers "
            f"({', '.join(release.name for release in budget.releases)})"
        )
    elif budget.query_share:
        total += f", {budget.query_share * budget.epsilon:g} set aside for DP answers"
    console.print(
        f"{total}: {budget.epsilon:g} in all, delta {delta_up(budget.delta, 3)}, per user, "
        f"add-or-remove\nclip norm {plan.clip.l2_norm:.4g}, sampling probability "
        f"{plan.denominator / plan.population:.4g} of {plan.population:,} declared "
        f"{'users' if plan.algorithm == 'ULS' else 'examples'}, noise {plan.noise_std:.4g} on the "
        f"sum\nchosen from {proposal.basis}",
        markup=False,
        soft_wrap=True,
    )
    for note in proposal.notes:
        console.print(f"note: {note}", markup=False, soft_wrap=True)
    console.print(
        f"Written to {out}; run it: userdp train STORE --out RUN --plan {out}",
        markup=False,
        soft_wrap=True,
    )


def _table(proposal: Proposal) -> Table:
    """Every answer side by side: M users a step, or B examples.

    ``noise`` is on each coordinate of one step's mean gradient, ``averaged`` on the mean of all T.
    """
    candidates, plan = proposal.candidates, proposal.plan
    best = candidates.optimum.cell.noise_std
    if candidates.els_choice is not None:
        best = min(best, candidates.els_choice.noise_std)
    table = Table(box=None, pad_edge=False, collapse_padding=True)
    for name in ("", "G", "M or B", "T", "sigma", "noise", "to best", "averaged"):
        table.add_column(name, justify="right" if name else "left", no_wrap=not name)

    def row(name: str, cell: Any, *, users: bool, averaged: str = "") -> None:
        size = cell.cohort_size if users else cell.batch_size
        chosen = (
            (plan.algorithm == "ULS") == users
            and cell.group_size == plan.sampling.group_size
            and cell.steps == plan.steps
            and cell.noise_multiplier == plan.noise.multiplier
        )
        table.add_row(
            name,
            str(cell.group_size),
            f"{size:.5g}",
            str(cell.steps),
            f"{cell.noise_multiplier:.4g}",
            f"{cell.noise_std:.4g}",
            f"{cell.noise_std / best:.3f}" if cell.steps == plan.steps else "",
            averaged,
            style="bold" if chosen else None,
        )

    row("ULS, problem (10), all G", candidates.optimum.cell, users=True)
    row("ULS, Estimate-and-Double", candidates.doubling.cell, users=True)
    row("ULS, Algorithm 3 as printed", candidates.literal.cell, users=True)
    if candidates.els_choice is not None:
        row("ELS, median rule", candidates.els_choice, users=False)
    table.add_section()
    measured = set(proposal.norms.group_sizes)
    for cell in candidates.optimum.evaluated:
        if cell.group_size in measured:
            row("ULS, G M = B", cell, users=True)
    for els in candidates.els:
        row("ELS", els, users=False)
    table.add_section()
    for cell in candidates.steps:
        name = "ULS, as above" if cell.steps == plan.steps else "ULS, same B T"
        row(name, cell, users=True, averaged=f"{cell.averaged_noise_std:.3g}")
    return table
