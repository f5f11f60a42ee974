"""``userdp train``: fine-tune with user-level privacy, or pre-train without."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from userdp.cli.claims import claim_parts
from userdp.cli.output import Answer
from userdp.cli.plan_options import PlanOptions, build_plain_plan, build_plan
from userdp.cli.preset_options import LearningOptions, chosen_preset, filled, given, settings
from userdp.errors import UseError
from userdp.reporting.table import Table
from userdp.training.config import PlainPlan
from userdp.vocabulary import delta_up, round_up

if TYPE_CHECKING:
    from userdp.api.run import Run
    from userdp.plans import Plan
    from userdp.plans.preset import Preset


def train(
    store: Path,
    /,
    *,
    out: Path,
    plan: Path | None = None,
    privacy: Literal["user", "none"] = "user",
    scores: Path | None = None,
    resume: bool = False,
    dry_run: bool = False,
    sharded: bool = False,
    verify: bool = False,
    device: str = "auto",
    tensorboard: Annotated[bool, Parameter(negative="--no-tensorboard")] = True,
    allow_large_delta: bool = False,
    options: Annotated[PlanOptions | None, Parameter(name="*", group="Plan")] = None,
    learning_rate: float | None = None,
    config: Annotated[LearningOptions | None, Parameter(name="*", group="Learning")] = None,
    base_of_others: bool = False,
    charge_again: bool = False,
    declare: bool = False,
    slot: Annotated[str | None, Parameter(show=False)] = None,
) -> Answer | None:
    """Fine-tune a model with user-level differential privacy.

    Each step is charged in the run's ledger, on the disk, before its data is read; the whole plan
    is reserved in the store's ledger before the first. The released weights are in RUN/model.

    A budget suffices: with --epsilon and --population only, a preset chooses group size, cohort
    size, steps, clip norm, delta and learning rate, without a look at the store, and says them
    before training. An option that you give stands in place of its choice.

    Args:
        store: a user store made by userdp prepare.
        out: the run's folder (RUN).
        plan: a plan file; or give the plan's numbers as options.
        privacy: user (the default), or none: shuffled batches, no claim, and the store's own claim
            becomes infinite.
        scores: the file of userdp score, for --selection highest-perplexity or lowest-perplexity.
        resume: go on with the interrupted run in --out: its remaining steps, on fresh cohorts.
        dry_run: charge nothing and write nothing: print the noise, the time of a step and of the
            whole run (measured on made-up rows), the memory, and what the model and the store would
            claim.
        sharded: under torchrun, take the model apart over the processes (FSDP2), for one that no
            process holds whole; without it each process has all of it.
        verify: check every byte of the store before anything is charged; sizes and a sample of 32
            MiB are always checked.
        device: where gradients and noise are computed: auto (cuda where there is one, else cpu),
            cpu, cuda or cuda:N; never the claim.
        tensorboard: write curves, where TensorBoard is installed (the default).
        allow_large_delta: begin even where delta is not below 1 over the declared population (of
            users; of examples where no number of users is declared): a claim that says little.
        options: see PlanOptions.
        learning_rate: its peak, after the warm-up; by default the preset's, 0.0015 (with
            --lora-rank 0.002), and without a preset 0.001.
        config: see TrainConfig.
        base_of_others: nobody whose text the base model learned from is in this store, say because
            that was public: then its price is none of theirs. A condition of the claim.
        charge_again: with --resume, in a copy of the run's folder, or one that was put back: charge
            the whole plan once more, and go on.
        declare: train nothing: record this plan and these options in the store's ledger, so that a
            run that is trained by them later is known to have been fixed before whatever follows.
        slot: given only by userdp sweep: the trial of a private selection, which pays for it.
    """
    chosen_by = chosen_preset(plan, privacy, options, config)
    chosen = _chosen_plan(plan, privacy, options, chosen_by, resume=resume)
    learning = settings(config, learning_rate, chosen_by)
    from userdp.api import train as api

    if chosen_by is not None:
        from userdp.commands.progress import say

        say(chosen_by.sentence(given(options, learning_rate)))

    if declare:
        api.declare(store, chosen, config=learning, scores=scores)
        words = "Recorded in the store's ledger: nothing that is asked of it later chose this run."
        return Answer(values={"store": str(store), "declared": True}, parts=[words])
    run = api.train(
        store,
        chosen,
        out=out,
        config=learning,
        scores=scores,
        resume=resume,
        dry_run=dry_run,
        sharded=sharded,
        verify=verify,
        device=device,
        tensorboard=tensorboard,
        base_of_others=base_of_others,
        charge_again=charge_again,
        slot=slot,
        allow_large_delta=allow_large_delta,
    )
    if run is None:
        return None
    from userdp.api.run import Run

    parts = _parts(run) if isinstance(run, Run) else [str(run)]
    return Answer(values=run.to_dict(), parts=parts)


def _chosen_plan(
    path: Path | None,
    privacy: str,
    options: PlanOptions | None,
    chosen_by: Preset | None,
    *,
    resume: bool,
) -> Path | Plan | PlainPlan | None:
    """The plan of a file, of options or of the preset; None for that of the run resumed."""
    if path is not None:
        if options is not None or privacy == "none":
            raise UseError("--plan says it all: leave the other options of a plan out")
        return path
    if resume and options is None:
        return None
    options = options or PlanOptions()
    if privacy == "none":
        return build_plain_plan(options)
    if chosen_by is None:
        return build_plan(options)
    from userdp.plans.preset import require_signal

    plan = build_plan(filled(options, chosen_by))
    require_signal(plan)
    return plan


def _parts(run: Run) -> Iterator[Table | str]:
    result = run.to_dict()
    epsilon = float(result["epsilon"])
    names = ("unit", "adjacency", "sampling", "accountant", "algorithm", "steps")
    yield Table(
        rows=[
            ("epsilon", "none" if math.isinf(epsilon) else round_up(epsilon)),
            ("delta", delta_up(result["delta"])),
            *((name, str(result[name])) for name in names if result[name] is not None),
            ("minutes", f"{result['seconds'] / 60:.1f}"),
            ("model", result["model"]),
            ("ledger", result["ledger"]),
        ],
        strong=[0],
    )
    yield from claim_parts(run.claim)
