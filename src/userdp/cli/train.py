"""``userdp train``: fine-tune with user-level privacy, or pre-train without."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from userdp.cli.claims import claim_parts
from userdp.cli.output import Answer, print_warning
from userdp.cli.plan_options import PlanOptions, build_plain_plan, build_plan
from userdp.cli.progress import StepBar
from userdp.errors import UseError
from userdp.reporting.table import Table
from userdp.training.config import PlainPlan, TrainConfig, train_config
from userdp.vocabulary import delta_up, round_up

if TYPE_CHECKING:
    from userdp.claim import Claim
    from userdp.plan import Plan


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
    device: str = "cpu",
    no_tensorboard: bool = False,
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
        device: cpu, cuda or cuda:N, where gradients and noise are computed; never the claim.
        no_tensorboard: write no curves, even where TensorBoard is installed.
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
    chosen = _choose_plan(plan, privacy, options, out, resume=resume)
    settings = _choose_config(config, out, resume=resume)
    if isinstance(chosen, PlainPlan):
        print_warning(
            "--privacy none: the people in this store get no protection from this run, and no "
            "epsilon can be claimed for the store any more."
        )
    elif not chosen.sampling.covered:
        print_warning(
            f"no accountant covers {chosen.sampling.words.title}, so no epsilon is claimed for "
            "this run or, from here on, for the store."
        )
    elif not resume:
        warn_of_delta(chosen, plan, allow_large_delta=allow_large_delta)
    from userdp.data.store import UserStore

    if declare:
        return _declare(store, chosen, settings, scores)
    from userdp.training.distributed import joined
    from userdp.training.loop import train as run_training

    with joined() as world, StepBar() as bar:
        done = run_training(
            UserStore.open(store, fixed_graph=True),  # the plan is held against it in training
            chosen,
            settings,
            out=out,
            scores=scores,
            resume=resume,
            sharded=sharded,
            device=device,
            progress=bar if world.rank == 0 else None,
            tensorboard=not no_tensorboard,
            base_of_others=base_of_others,
            charge_again=charge_again,
            slot=slot,
            allow_large_delta=True,  # judged above, by the number of users if there is one
        )
    if world.rank != 0:
        return None
    from userdp.claim import claim

    claimed = claim(out)
    result = _described(out, chosen, claimed, seconds=done.seconds)
    return Answer(values=result, parts=_parts(result, claimed))


def _declare(
    store: Path, plan: Plan | PlainPlan, config: TrainConfig, scores: Path | None
) -> Answer:
    """Record the constants of a run to come."""
    from userdp.codec import encode
    from userdp.data.store import UserStore
    from userdp.ledger import StoreLedger
    from userdp.training.runs import constants_digest

    if isinstance(plan, PlainPlan):
        raise UseError("a run without privacy claims nothing: there is nothing to declare")
    opened = UserStore.open(store, fixed_graph=True)
    StoreLedger(store).declare(constants_digest(plan, encode(config), opened, scores=scores))
    return Answer(
        values={"store": str(store), "declared": True},
        parts=["Recorded in the store's ledger: nothing that is asked of it later chose this run."],
    )


def warn_of_delta(plan: Plan, path: Path | None, *, allow_large_delta: bool) -> None:
    """Refuse a δ of 1/n or more, and warn of one above n^-1.1; ``path`` of the plan's file."""
    from userdp.plan.small_delta import plan_with_small_delta
    from userdp.planning.proposal import declared_users

    users = None if path is None else declared_users(path)
    print_warning(plan_with_small_delta(plan, users=users, allow_large_delta=allow_large_delta))


def _described(
    out: Path, plan: Plan | PlainPlan, claimed: Claim, *, seconds: float
) -> dict[str, Any]:
    """The claim of a finished run, recomputed from its ledger, and where its parts lie."""
    plain = isinstance(plan, PlainPlan)
    return {
        **claimed.to_dict(),
        "algorithm": None if isinstance(plan, PlainPlan) else plan.algorithm,
        "steps": plan.steps if plain else claimed.steps,
        "seconds": round(seconds, 2),
        "run": str(out),
        "model": str(out / "model"),
        "ledger": str(out / "ledger.jsonl"),
    }


def _choose_plan(
    path: Path | None,
    privacy: str,
    options: PlanOptions | None,
    out: Path,
    *,
    resume: bool,
) -> Plan | PlainPlan:
    """The plan of a file, of options, or of the run that is resumed.

    Whether a file is from userdp plan or from `Plan.save` is told by its schema.
    """
    if path is not None:
        if options is not None or privacy == "none":
            raise UseError("--plan says it all: leave the other options of a plan out")
        from userdp.planning.proposal import load_plan

        return load_plan(path)
    if resume and options is None:
        return _kept_plan(out)
    options = options or PlanOptions()
    return build_plain_plan(options) if privacy == "none" else build_plan(options)


def _kept_plan(out: Path) -> Plan | PlainPlan:
    from userdp.ledger import RunFolder
    from userdp.plan import Plan

    folder = RunFolder(out)
    if folder.plan.exists():
        return Plan.load(folder.plan)
    options = folder.read_train()
    if options.get("privacy") != "none":
        raise UseError(f"there is no run at {out} to resume", hint="leave out --resume")
    return PlainPlan(steps=options["steps"], batch_size=options["batch_size"])


def _choose_config(config: TrainConfig | None, out: Path, *, resume: bool) -> TrainConfig:
    """The configuration of the options, or of the run that is resumed."""
    if config is not None or not resume:
        return config or TrainConfig()
    from userdp.ledger import RunFolder

    return train_config(RunFolder(out).read_train())


def _parts(result: dict[str, Any], claimed: Claim) -> Iterator[Table | str]:
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
    yield from claim_parts(claimed)
