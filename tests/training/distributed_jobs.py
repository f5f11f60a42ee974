"""What the processes of `test_distributed` do; also what makes them wrong on purpose."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from tests.plans import els_plan, uls_plan
from tests.training.toy import CONFIG, private_run, sgd, toy_model
from userdp.core.errors import Interrupted
from userdp.data.user_store import UserStore
from userdp.gradients import NoiseSource, trainable_parameters
from userdp.gradients.shards import ShardNoise, shard, whole
from userdp.plans import Plan
from userdp.sampling.draws import Cohort
from userdp.training.config import Averaging, RunOptions, Schedule, UnsafeSeeds
from userdp.training.distributed import Dealing, SharedNoise, World, owners_to_all
from userdp.training.loop import train
from userdp.training.lora import choose_trained

STEPS = 20
SEEDS = {"unsafe_seeds": UnsafeSeeds(draws=5, noise=6)}


def plan_of(kind: str, **changes) -> Plan:
    """Small cohorts: with four processes, some have nobody."""
    if kind == "uls":
        return uls_plan(population=40, cohort_size=4, **{"steps": STEPS, **changes})
    return els_plan(population=120, batch_size=6, **{"steps": STEPS, **changes})


def begin(store: Path, out: Path, plan: Plan, *, lora=False, sharded=False, **options):
    people = UserStore.open(store)
    model = toy_model(people)
    if lora:
        model = choose_trained(model, replace(CONFIG, lora_rank=2))
    model = shard(model.train()) if sharded else model.train()
    return private_run(model, sgd(model), people, plan, out=out, exact_log=True, **options)


def flat(tensors) -> torch.Tensor:
    return torch.cat([whole(one.detach()).flatten() for one in tensors]).clone()


def finished(run) -> torch.Tensor:
    """The weights after all steps that remain."""
    with run:
        for _ in run:
            run._of.optimizer.step()
    return flat(trainable_parameters(run._of.model).values())


def trained(store: Path, out: Path, kind: str, lora: bool, sharded: bool) -> torch.Tensor:
    return finished(begin(store, out, plan_of(kind), lora=lora, sharded=sharded, **SEEDS))


def noises(store: Path, out: Path, sharded: bool, broken: str | None) -> torch.Tensor:
    """The noise of some steps without anybody, in units of what it should be: (steps, numbers)."""
    plan = uls_plan(population=10**9, target_delta=1e-10, cohort_size=1, steps=4)
    assert plan.denominator == plan.noise_std == 1  # so that it stays on its grid
    same = NoiseSource(unsafe_noise_seed=3)

    def on_every_process(self, value, noise_std):
        NoiseSource().add_(value, noise_std)
        for part in value.values():
            dist.all_reduce(part)

    if broken == "one seed for all shards":
        ShardNoise.add_ = lambda self, value, noise_std: same.add_(value, noise_std)
    elif broken is not None:
        SharedNoise.add_ = {
            "noise on every process": on_every_process,
            "each its own": lambda self, *given: NoiseSource().add_(*given),
        }[broken]
    seen = []
    with begin(store, out, plan, sharded=sharded) as run:
        for step in run:
            assert step.operator["units"] == 0
            seen.append(flat(p.grad for p in trainable_parameters(run._of.model).values()).double())
            run._of.optimizer.step()
    return torch.stack(seen)


def sums(store: Path, out: Path, kind: str, sharded: bool, broken: str | None) -> list:
    """The clipped sum of a cohort, then without each of its first users: as flat vectors."""
    if broken is not None:
        _break(broken)
    run = begin(store, out, plan_of(kind, l2_clip_norm=0.05), sharded=sharded)
    mechanism, world, found = run.mechanism, World(), []
    users = np.arange(8) if kind == "uls" else np.repeat(np.arange(4), 2)
    examples = np.zeros(8, int) if kind == "uls" else np.tile([0, 1], 4)
    for left_out in (None, 0, 1, 2):
        kept = users != left_out
        offsets = np.arange(int(kept.sum()) + 1)
        cohort = Cohort(users=users[kept], examples=examples[kept], offsets=offsets)
        mine = mechanism.dealing.mine(cohort)
        assert mechanism.clipping()["parts"] == world.size  # by it the engine limits its rounding
        with run._held.own_passes():  # as a step does
            summed = mechanism.clip(mechanism.collator(mine))
        total, _ = mechanism.dealing.together(summed, 0, scattered=mechanism.scattered)
        if not mechanism.scattered:
            owners_to_all(world, total.value)
        parts = torch.cat([value.flatten() for value in total.value.values()])
        found.append(torch.cat(world.all_gather_object(parts)) if mechanism.scattered else parts)
    run.close()
    return found


def _break(how: str) -> None:
    rank, mine = World().rank, Dealing.mine

    def left_out(self, cohort):
        part = mine(self, cohort)
        return part.part(0, 0) if rank == 1 else part

    def everybody(self, cohort):
        mine(self, cohort)
        self._units = cohort.units * self._world.size  # and the check is fooled
        return cohort

    def own(self, cohort):
        return mine(self, replace(cohort, users=(cohort.users + rank) % 8))

    Dealing.mine = {"left out": left_out, "everybody": everybody, "own cohort": own}[how]


def dies(store: Path, out: Path, rank: int, at: int) -> None:
    """A run in which process ``rank`` is killed while it clips step ``at``."""
    run = begin(store, out, plan_of("uls"))
    engine = run.mechanism.engine

    def dying(*arguments, **options):
        if run.done == at and World().rank == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        return engine(*arguments, **options)

    run.mechanism.engine = dying
    finished(run)


def interrupted(store: Path, out: Path, rank: int, at: int) -> tuple[str, int]:
    """Where each process stops when ``rank`` alone hears Ctrl-C in step ``at``; and its steps."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    place, taken = "at the end", 0
    with begin(store, out, plan_of("uls")) as run:
        try:
            for step in run:
                if step.number == at and World().rank == rank:
                    os.kill(os.getpid(), signal.SIGINT)
                run._of.optimizer.step()
                taken += 1
        except Interrupted as stop:
            place = stop.place
    return place, taken


def goes_on(store: Path, out: Path) -> int:
    run = begin(store, out, plan_of("uls"), resume=True)
    finished(run)
    return run.done


def differs(store: Path, out: Path, what: str) -> None:
    """Process 1 would add half the noise, or round otherwise."""
    half = {}
    if World().rank == 1 and what == "plan":
        half = {"noise_multiplier": 1.0}
    if World().rank == 1 and what == "threads":
        torch.set_num_threads(2)
    begin(store, out, plan_of("uls", **half))


def released(store: Path, out: Path, sharded: bool, lora: bool) -> str:
    """A whole run of `train`, with all that it does beside steps."""
    config = replace(CONFIG, layers=2, averaging=Averaging.EMA, lora_rank=2 if lora else None)
    config = replace(config, checkpoint_every=2, evaluate_every=2, schedule=Schedule.FOLLOWING)
    how = RunOptions(sharded=sharded)
    train(UserStore.open(store), plan_of("uls", steps=6), config, out=out, options=how, **SEEDS)
    return "done"
