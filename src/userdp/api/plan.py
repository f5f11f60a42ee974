"""``userdp.plan``: from a privacy and a compute budget to the best plan, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from userdp.api.plan_cost import Predictor
from userdp.api.plan_inputs import gather
from userdp.claims.foreseen import foreseen
from userdp.data.meta import read_meta
from userdp.data.store import UserStore
from userdp.errors import UseError, warn
from userdp.files import require_new
from userdp.ledger import StoreLedger
from userdp.planning.norms import GradientNorms
from userdp.planning.options import MOST_NOISE, Declared, Goals, Machine
from userdp.planning.planner import propose
from userdp.planning.proposal import Proposal
from userdp.plans.small_delta import require_small_delta
from userdp.queries.ownership import require_one_owner

if TYPE_CHECKING:
    from userdp.data.progress import Progress


def plan(
    store: UserStore | str | Path,
    *,
    epsilon: float,
    steps: int,
    budget: float | None = None,
    norms: GradientNorms | str | Path | None = None,
    model: str | Path | None = None,
    out: str | Path | None = None,
    population: int | None = None,
    population_examples: int | None = None,
    median_examples: int | None = None,
    delta: float | None = None,
    query_share: float | None = None,
    unsafe_exact_counts: bool = False,
    algorithm: Literal["auto", "uls", "els"] = "auto",
    l2_clip_norm: float | None = None,
    choose_steps: bool = False,
    extrapolate: bool = False,
    most_noise: float = MOST_NOISE,
    repeat: int = 1,
    repeat_answers: Sequence[float] = (),
    hardware: str | None = None,
    device_hours: float | None = None,
    price_per_hour: float | None = None,
    micro_batch: int = 32,
    lora_rank: int | None = None,
    allow_large_delta: bool = False,
    overwrite: bool = False,
    progress: Progress | None = None,
) -> Proposal:
    """Choose group size, cohort size, noise, and ELS or ULS, for a privacy and a compute budget.

    Of the store only its ledger is read (and, with ``model``, the examples that the probe
    measures). No count of it enters the plan: numbers are declared, or taken from the DP answers in
    its ledger. What all answers there cost is taken from ``epsilon``, since the run's claim counts
    them: ``prediction["claim"]`` says what it will be, and each part.

    Args:
        store: a user store, or its folder.
        epsilon: of training and of all DP answers before it; earlier runs are added, and said.
        steps: T, noisy updates.
        budget: B, gradients per step, in expectation; or give ``device_hours``.
        norms: what `userdp.probe` measured, or its file; or give ``model``.
        model: probe this model now, on held-out users; with ``norms`` and ``hardware``, the model
            whose cost is predicted.
        out: the plan file to write, if any.
        population: the declared nominal number of users: a public constant that you choose.
        population_examples: the declared nominal number of examples of all users together; for ELS.
        median_examples: the declared median of examples per user: the group size of ELS.
        delta: in (0, 1); by default n^-1.1 of what is declared.
        query_share: the share of epsilon set aside for DP answers, fixed before the first of them.
        unsafe_exact_counts: read the store's exact counts; no epsilon covers what they choose.
        algorithm: auto takes the one that adds less noise.
        l2_clip_norm: by default the typical norm of what is clipped.
        choose_steps: T may change at the same B times T.
        extrapolate: allow group sizes beyond the largest measured, with its norm.
        most_noise: refuse plans with more noise than this on a coordinate of the mean gradient.
        repeat: declare a series of so many runs like this one in the store's ledger; ``epsilon`` is
            that of all of them together.
        repeat_answers: ε of each DP answer that the series is to hold besides, over all runs.
        hardware: predict time, memory and money of the plan on it: "h100x8" and the like.
        device_hours: in place of ``budget``: B is what so many hours of one device buy.
        price_per_hour: of one device, in any currency.
        micro_batch: as for `userdp.train`, for the prediction.
        lora_rank: as for `userdp.train`: of the adapters that are probed and predicted for.
        allow_large_delta: plan even where delta is not below 1 over the number of users.
        overwrite: replace the file at ``out``.
        progress: is told how far the probe is.

    Returns:
        The plan, for `userdp.train`, with all candidates and why this one was chosen.

    Raises:
        UseError: no population is known, no plan is within the budget, or an argument is out of
            range.
    """
    declared = Declared(
        epsilon=epsilon,
        population=population,
        population_examples=population_examples,
        median_examples=median_examples,
        delta=delta,
        query_share=query_share,
        unsafe_exact_counts=unsafe_exact_counts,
    )
    machine = Machine(
        hardware=hardware,
        device_hours=device_hours,
        price_per_hour=price_per_hour,
        micro_batch=micro_batch,
        lora_rank=lora_rank,
    )
    if hardware is not None and model is None:
        raise UseError(
            "--hardware predicts what a step of the model costs, and no --model is given",
            hint="add --model MODEL: a folder, a name on the hub, 'bundled' or 'new'; --norms may "
            "stay beside it",
        )
    if (budget is None) == (device_hours is None):
        raise UseError(
            "plan needs exactly one of --budget and --device-hours: how many gradients a step may "
            "take decides group size and cohort size",
            hint="give --budget 1024, or --device-hours 100 --hardware h100x8",
        )
    goals = Goals(
        budget=budget,
        steps=steps,
        algorithm=algorithm,
        l2_clip_norm=l2_clip_norm,
        choose_steps=choose_steps,
        extrapolate=extrapolate,
        most_noise=most_noise,
        repeat=repeat,
        repeat_answers=tuple(repeat_answers),
    )
    if out is not None:
        require_new(Path(out), overwrite=overwrite, name="plan.json")
    path = store.path if isinstance(store, UserStore) else Path(store)
    require_one_owner(read_meta(path))
    meta = read_meta(path)
    measured = _norms(path, norms, model, machine, progress)

    # With hours in place of a budget, B is chosen below, of the same constants.
    request, notes = gather(path, measured, declared, replace(goals, budget=budget or 1.0))
    count = request.population.value
    assert count is not None
    warn(
        require_small_delta(
            request.privacy.delta,
            int(count),
            counted="users",
            allow_large_delta=allow_large_delta,
        )
    )

    def proposed(gradients: float) -> Proposal:
        proposal = propose(replace(request, budget=gradients))
        return replace(proposal, notes=notes + proposal.notes)

    if machine.hardware is None:
        assert budget is not None
        proposal = proposed(budget)
    else:
        predictor = Predictor(machine=machine, model=str(model), meta=meta)
        proposal = predictor.with_cost(
            predictor.proposed(proposed, steps=steps) if budget is None else proposed(budget)
        )
    if proposal.series is not None:
        StoreLedger(path).declare_series(proposal.series)
    # Read after that: the series pays for the run.
    claimed = foreseen(StoreLedger(path).history(), proposal.plan, base=model)
    proposal = replace(proposal, prediction={**proposal.prediction, "claim": claimed})
    if out is not None:
        proposal.save(Path(out))
    if proposal.basis.startswith(("non-private", "statistics of held-out")):
        warn(
            f"this plan was chosen from {proposal.basis}. The claim does not cover that; plan file "
            "and report say so."
        )
    return proposal


def _norms(
    store: Path,
    given: GradientNorms | str | Path | None,
    model: str | Path | None,
    machine: Machine,
    progress: Progress | None,
) -> GradientNorms:
    """The norms given, those of a file, or of a probe made now."""
    if machine.lora_rank is not None and machine.hardware is None and model is None:
        raise UseError("--lora-rank says nothing without --model or --hardware")
    beside = given is not None and machine.hardware is not None
    if (given is None) == (model is None) and not beside:
        raise UseError(
            "plan needs exactly one of --norms and --model: how long gradients are decides between "
            "larger groups and larger cohorts",
            hint="measure them with userdp probe STORE --model MODEL --out norms.json",
        )
    if isinstance(given, GradientNorms):
        return given
    if given is not None:
        return GradientNorms.load(Path(given))
    from userdp.api.probe import probe

    assert model is not None
    return probe(store, model=model, lora_rank=machine.lora_rank, progress=progress)
