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
from userdp.errors import UseError
from userdp.reporting.table import Table
from userdp.training.config import PlainPlan, TrainConfig
from userdp.vocabulary import delta_up, round_up

if TYPE_CHECKING:
    from userdp.api.run import Run
    from userdp.plans import Plan


def train(
    store: Path,
    /,
    *,
    out: Path,
    plan: Path | None = None,
    privacy: Literal["user", "none"] = "user",
    scores: Path | None = None,
    resume: bool = False,
    sharded: bool = False,
    device: str = "auto",
    tensorboard: Annotated[bool, Parameter(negative="--no-tensorboard")] = True,
    allow_large_delta: bool = False,
    options: Annotated[PlanOptions | None, Parameter(name="*")] = None,
    config: Annotated[TrainConfig | None, Parameter(name="*")] = None,
    base_of_others: bool = False,
    charge_again: bool = False,
    declare: bool = False,
    slot: Annotated[str | None, Parameter(show=False)] = None,
) -> Answer | None:
    """Fine-tune a model with user-level differential privacy.

    Each step is charged in the run's ledger, on the disk, before its data is read; the whole plan
    is reserved in the store's ledger before the first. The released weights are in RUN/model.

    Args:
        store: a user store made by userdp prepare.
        out: the run's folder (RUN).
        plan: a plan file; or give the plan's numbers as options.
        privacy: user (the default), or none: shuffled batches, no claim, and the store's own claim
            becomes infinite.
        scores: the file of userdp score, for --selection highest-perplexity or lowest-perplexity.
        resume: go on with the interrupted run in --out: its remaining steps, on fresh cohorts.
        sharded: under torchrun, take the model apart over the processes (FSDP2), for one that no
            process holds whole; without it each process has all of it.
        device: where gradients and noise are computed: auto (cuda where there is one, else cpu),
            cpu, cuda or cuda:N; never the claim.
        tensorboard: write curves, where TensorBoard is installed.
        allow_large_delta: begin even where delta is not below 1 over the declared population (of
            users; of examples where no number of users is declared): a claim that says little.
        options: see PlanOptions.
        config: see TrainConfig.
        base_of_others: nobody whose text the base model learned from is in this store, say because
            that was public: then its price is none of theirs. A condition of the claim.
        charge_again: with --resume, in a copy of the run's folder, or one that was put back: charge
            the whole plan once more, and go on.
        declare: train nothing: record this plan and these options in the store's ledger, so that a
            run that is trained by them later is known to have been fixed before whatever follows.
        slot: given only by userdp sweep: the trial of a private selection, which pays for it.
    """
    chosen = _chosen_plan(plan, privacy, options, resume=resume)
    from userdp.api import train as api

    if declare:
        api.declare(store, chosen, config=config, scores=scores)
        words = "Recorded in the store's ledger: nothing that is asked of it later chose this run."
        return Answer(values={"store": str(store), "declared": True}, parts=[words])
    run = api.train(
        store,
        chosen,
        out=out,
        config=config,
        scores=scores,
        resume=resume,
        sharded=sharded,
        device=device,
        tensorboard=tensorboard,
        base_of_others=base_of_others,
        charge_again=charge_again,
        slot=slot,
        allow_large_delta=allow_large_delta,
    )
    return None if run is None else Answer(values=run.to_dict(), parts=_parts(run))


def _chosen_plan(
    path: Path | None, privacy: str, options: PlanOptions | None, *, resume: bool
) -> Path | Plan | PlainPlan | None:
    """The plan of a file or of options; None for that of the run that is resumed."""
    if path is not None:
        if options is not None or privacy == "none":
            raise UseError("--plan says it all: leave the other options of a plan out")
        return path
    if resume and options is None:
        return None
    options = options or PlanOptions()
    return build_plain_plan(options) if privacy == "none" else build_plan(options)


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
