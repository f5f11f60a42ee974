"""``userdp.train``: fine-tune a model with user-level differential privacy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from userdp.api.preset import by_preset
from userdp.api.run import Run
from userdp.claims import claim
from userdp.claims.foreseen import foreseen, foreseen_in_words
from userdp.codec import encode
from userdp.commands.progress import say, shown
from userdp.data.store import UserStore
from userdp.data.verify import require_every_byte
from userdp.errors import UseError, warn
from userdp.ledger import RunFolder, StoreLedger
from userdp.plans import Plan
from userdp.plans.proposal import Proposal, as_plan, declared_users
from userdp.plans.small_delta import plan_with_small_delta
from userdp.training.config import PlainPlan, TrainConfig, train_config

if TYPE_CHECKING:
    from userdp.data.progress import Progress
    from userdp.training.dry_run import DryRun


def train(
    store: UserStore | str | Path,
    plan: Plan | Proposal | PlainPlan | str | Path | None = None,
    *,
    out: str | Path,
    epsilon: float | None = None,
    population: int | None = None,
    delta: float | None = None,
    config: TrainConfig | None = None,
    scores: str | Path | None = None,
    resume: bool = False,
    dry_run: bool = False,
    sharded: bool = False,
    verify: bool = False,
    device: str = "auto",
    tensorboard: bool = True,
    allow_large_delta: bool = False,
    base_of_others: bool = False,
    charge_again: bool = False,
    slot: str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Run | DryRun | None:
    """Fine-tune a model with user-level differential privacy.

    Guarantee: the released weights satisfy ``run.claim``. Each step is charged in the run's ledger,
    on the disk, before its data is read; the whole plan is reserved in the store's ledger before
    the first.

    Args:
        store: a user store, or its folder.
        plan: what `userdp.plan` proposed, a `Plan`, or the file of one; None with ``resume``. A
            `PlainPlan` trains without privacy: no claim, and the store's becomes infinite.
        out: the run's folder.
        epsilon: in place of a plan, with ``population``: a preset chooses all constants, without a
            look at the store, and they are said before training (`userdp.plans.preset`).
        population: the declared nominal number of users: a public constant that you choose.
        delta: of the preset; population^-1.1 by default.
        config: the model and how it learns; in its place, its fields as keywords.
        scores: the file of ``userdp score``, for a selection by perplexity.
        resume: go on with the interrupted run in ``out``, by what it began with.
        dry_run: do all but charge and write: answer what the run would cost (noise, time, memory)
            and claim, to be printed.
        sharded: in several processes, take the model apart (FSDP2).
        verify: check every byte of the store before anything is charged; a sample is always
            checked.
        device: auto (cuda where there is one, else cpu), cpu, cuda or cuda:N.
        tensorboard: write curves where TensorBoard is installed.
        allow_large_delta: begin even where delta is not below 1 over the declared population.
        base_of_others: nobody whose text the base model learned from is in this store: a condition
            of the claim.
        charge_again: with ``resume``, in a copy of the run's folder, or one that was put back:
            charge the whole plan once more, and go on.
        slot: given only by a sweep.
        progress: is told how far it is; by default a bar, or lines where stderr is no terminal.
        options: fields of `TrainConfig`, such as ``model`` or ``learning_rate``.

    Returns:
        The run, or what a dry run would cost and claim; None on all processes but the first.

    Raises:
        UseError: an argument is out of range or fits no other; nothing was charged.
        FailureError: the machine could not do it; what was charged stays charged.
        Interrupted: by Ctrl-C or SIGTERM; the step that was charged was finished and is in a
            checkpoint, from which ``resume`` goes on.
    """
    from userdp.data.progress import NoProgress
    from userdp.training.distributed import joined
    from userdp.training.loop import train as run_training
    from userdp.training.opening import constants_digest

    if any(value is not None for value in (epsilon, population, delta)):
        plan, options = by_preset(
            plan, config, options, epsilon=epsilon, population=population, delta=delta
        )
    chosen = chosen_plan(plan, Path(out), resume=resume)
    settings = chosen_config(config, options, Path(out), resume=resume)
    people = opened(store, fixed_graph=True)  # the plan is held against its adjacency in training
    if isinstance(chosen, PlainPlan):
        warn(
            "training without privacy: the people in this store get no protection from this run, "
            "and no epsilon can be claimed for the store any more."
        )
    elif not chosen.sampling.covered:
        warn(
            f"no accountant covers {chosen.sampling.words.title}, so no epsilon is claimed for "
            "this run or, from here on, for the store."
        )
    elif not resume:
        history = StoreLedger(people.path).history()
        total = history.total_delta
        warn_of_delta(chosen, plan, total=total, allow_large_delta=allow_large_delta)
        named = None if scores is None else Path(scores)
        fixed = history.fixed_at(
            constants_digest(chosen, encode(settings), people, scores=named), history.lines
        )
        base = None if base_of_others else settings.model
        to_come = foreseen(history, chosen, base=base, at=fixed)
        if slot is None and (len(to_come["parts"]) > 1 or history.budget is not None):
            told = foreseen_in_words(to_come)
            say(f"The model will claim {told}.")
    with joined() as world, shown(progress if world.rank == 0 else NoProgress()) as bar:
        if verify:
            world.on_rank_zero(lambda: require_every_byte(people.path, progress=bar))
        done = run_training(
            people,
            chosen,
            settings,
            out=Path(out),
            scores=None if scores is None else Path(scores),
            resume=resume,
            dry_run=dry_run,
            sharded=sharded,
            device=device,
            progress=bar,
            tensorboard=tensorboard,
            base_of_others=base_of_others,
            charge_again=charge_again,
            slot=slot,
            allow_large_delta=True,  # judged above, by the number of users if there is one
        )
    if world.rank != 0:
        return None
    if done.dry is not None:
        return done.dry
    claimed = claim(Path(out))
    plain = isinstance(chosen, PlainPlan)
    return Run(
        path=Path(out),
        claim=claimed,
        algorithm=None if isinstance(chosen, PlainPlan) else chosen.algorithm,
        steps=chosen.steps if plain else claimed.steps,
        seconds=done.seconds,
    )


def declare(
    store: UserStore | str | Path,
    plan: Plan | Proposal | PlainPlan | str | Path | None,
    *,
    config: TrainConfig | None = None,
    scores: str | Path | None = None,
    **options: Any,
) -> None:
    """Record the constants of a run to come: whatever is asked of the store later chose none.

    Args:
        store: see `train`, as for all others.
        plan: see `train`.
        config: see `train`.
        scores: see `train`.
        options: see `train`.
    """
    chosen = chosen_plan(plan, None, resume=False)
    if isinstance(chosen, PlainPlan):
        raise UseError("a run without privacy claims nothing: there is nothing to declare")
    from userdp.training.opening import constants_digest

    settings = chosen_config(config, options, None, resume=False)
    people = opened(store, fixed_graph=True)
    named = None if scores is None else Path(scores)
    digest = constants_digest(chosen, encode(settings), people, scores=named)
    StoreLedger(people.path).declare(digest)


def opened(store: UserStore | str | Path, *, fixed_graph: bool = False) -> UserStore:
    """A store, opened; ``fixed_graph`` where what is done with it holds for several owners too."""
    path = store.path if isinstance(store, UserStore) else Path(store)
    return UserStore.open(path, fixed_graph=fixed_graph)


def chosen_plan(
    plan: Plan | Proposal | PlainPlan | str | Path | None, out: Path | None, *, resume: bool
) -> Plan | PlainPlan:
    """The plan itself: of a file, of a proposal, or of the run that is resumed."""
    if plan is not None:
        return plan if isinstance(plan, PlainPlan) else as_plan(plan)
    if not resume or out is None:
        raise UseError(
            "training needs a plan",
            hint="give --epsilon and --population, or make a plan with userdp plan",
        )
    folder = RunFolder(out)
    if folder.plan.exists():
        return Plan.load(folder.plan)
    options = folder.read_train()
    if options.get("privacy") != "none":
        raise UseError(f"there is no run at {out} to resume", hint="leave out --resume")
    return PlainPlan(steps=options["steps"], batch_size=options["batch_size"])


def chosen_config(
    config: TrainConfig | None, options: dict[str, Any], out: Path | None, *, resume: bool
) -> TrainConfig:
    """The configuration given, or made of its fields, or of the run that is resumed."""
    if config is not None and options:
        raise UseError(
            f"config says it all: leave {', '.join(options)} out, or config",
            hint="dataclasses.replace(config, …) changes a field",
        )
    if config is None and not options and resume and out is not None:
        return train_config(RunFolder(out).read_train())
    return config or TrainConfig(**options)


def warn_of_delta(plan: Plan, given: Any, *, total: float, allow_large_delta: bool) -> None:
    """Refuse a δ of 1/n or more, and warn of one above n^-1.1.

    Args:
        plan: whose δ.
        given: what it was given as: in a file, or as a proposal, the users that were declared stand
            beside it, where only their examples are in the plan.
        total: δ of the store's budget, see `plan_with_small_delta`.
        allow_large_delta: neither refuse nor warn.
    """
    warn(
        plan_with_small_delta(
            plan,
            users=declared_users(given),
            total_delta=total,
            allow_large_delta=allow_large_delta,
        ),
        stacklevel=3,
    )
