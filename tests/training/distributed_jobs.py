"""What the processes of `test_distributed` do; also what makes them wrong on purpose."""

from __future__ import annotations

import itertools
import math
import os
import random
import secrets
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from tests.memory import Memory, MemoryLoss
from tests.plans import changed_plan, els_plan, uls_plan
from tests.training.toy import CONFIG, private_run
from userdp.core.clip import AdaptiveClipping
from userdp.core.errors import FailureError, Interrupted
from userdp.data.store import UserStore
from userdp.gradients import NoiseSource, trainable_parameters
from userdp.gradients import noise as noise_module
from userdp.gradients.shards import ShardNoise, local, shard, whole
from userdp.plans import Plan
from userdp.sampling.cohort import Cohort
from userdp.training.config import Averaging, RunOptions, UnsafeSeeds
from userdp.training.distributed import current_world
from userdp.training.distributed_run import Dealing, SharedNoise, owners_to_all
from userdp.training.loop import train
from userdp.training.lora import add_adapters
from userdp.training.models import new_model
from userdp.training.private_run import PrivateRun

STEPS = 20


def plan_of(kind: str, **changes) -> Plan:
    """Small cohorts: with four processes, some have nobody."""
    if kind == "adaptive":
        clipping = AdaptiveClipping(count_noise_std=2.0, learning_rate=1.0)
        return changed_plan(plan_of("uls", **changes), adaptive=clipping)
    if kind == "uls":
        return uls_plan(population=40, cohort_size=4, **{"steps": STEPS, **changes})
    return els_plan(population=120, batch_size=6, **{"steps": STEPS, **changes})


def model_of(store: UserStore, *, lora: bool = False, sharded: bool = False) -> nn.Module:
    model = new_model(CONFIG, vocab_size=store.meta.vocab_size, seq_len=store.meta.seq_len)
    if lora:
        model = add_adapters(model, replace(CONFIG, lora_rank=2))
    return shard(model.train()) if sharded else model.train()


def weights_of(model: nn.Module) -> torch.Tensor:
    found = [whole(p.detach()).flatten() for p in trainable_parameters(model).values()]
    return torch.cat(found).clone()


def open_run(store: Path, out: Path, plan: Plan, **options) -> tuple[nn.Module, PrivateRun]:
    opened = UserStore.open(store)
    how = {name: options.pop(name) for name in ("lora", "sharded") if name in options}
    model = model_of(opened, **how)
    parameters = list(trainable_parameters(model).values())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    return model, private_run(model, optimizer, opened, plan, out=out, exact_log=True, **options)


def trained(store: Path, out: Path, kind: str, lora: bool, sharded: bool) -> torch.Tensor:
    """The weights after 20 steps under test seeds."""
    model, run = open_run(
        store,
        out,
        plan_of(kind),
        lora=lora,
        sharded=sharded,
        unsafe_seeds=UnsafeSeeds(draws=5, noise=6),
    )
    with run:
        for _ in run:
            run._of.optimizer.step()
    return weights_of(model)


def all_trained(jobs: list[tuple[Path, Path, str, bool, bool]]) -> list[torch.Tensor]:
    return [trained(*job) for job in jobs]


def noises(store: Path, out: Path, sharded: bool, broken: str | None) -> torch.Tensor:
    """The noise of some steps without anybody, in units of what it should be: (steps, numbers)."""
    plan = uls_plan(population=10**9, target_delta=1e-10, cohort_size=1, steps=4)
    if broken == "noise on every process":
        together = Dealing.together

        def noisy(self, summed, rows, **options):
            NoiseSource().add_(summed.value, plan.noise_std)
            return together(self, summed, rows, **options)

        Dealing.together = noisy
        SharedNoise.add_ = lambda self, value, noise_std: owners_to_all(self._world, value)
    if broken == "each its own":
        SharedNoise.add_ = lambda self, value, noise_std: NoiseSource().add_(value, noise_std)
    if broken == "one seed for all shards":
        same = NoiseSource(unsafe_noise_seed=3)
        ShardNoise.add_ = lambda self, value, noise_std: same.add_(value, noise_std)
    model, run = open_run(store, out, plan, sharded=sharded)
    scale = plan.denominator / plan.noise_std
    seen = []
    with run:
        for step in run:
            assert step.operator["units"] == 0
            grads = [whole(p.grad).flatten() for p in trainable_parameters(model).values()]
            seen.append(torch.cat(grads).double() * scale)
            run._of.optimizer.step()
    return torch.stack(seen)


def lattice_releases(store: Path, out: Path, std: float, numbers: int) -> dict[str, torch.Tensor]:
    """What processes release of zeros: all of a whole model, and this one's part of a sharded one.

    Also with float32 noise.

    The operating system's bits come from a generator here: the ways of secret seeds, repeatable.
    """
    world = current_world()
    secrets.randbits = random.Random(world.rank).getrandbits
    single = torch.Generator().manual_seed(world.rank)

    def released() -> dict[str, torch.Tensor]:
        together = {"weight": torch.zeros(numbers, dtype=torch.float64)}
        SharedNoise(world, nn.Linear(numbers, 1, bias=False)).add_(together, std)
        model = shard(nn.Linear(numbers // 100, 100, bias=False))
        parts = {
            name: torch.zeros(local(p).shape, dtype=torch.float64)
            for name, p in trainable_parameters(model).items()
        }
        ShardNoise(model).add_(parts, std)
        return {
            "whole": together["weight"],
            "shards": torch.cat([v.flatten() for v in parts.values()]),
        }

    right = released()
    drawn = itertools.count()

    def narrow(generator: np.random.Generator, out: np.ndarray) -> None:
        noise = torch.randn(len(out), generator=single).double().numpy() * math.sqrt(2)
        out[:] = noise if next(drawn) % 2 else 0.0

    noise_module.draw_on_host = narrow
    return right | {f"{name} in float32": value for name, value in released().items()}


def sums(store: Path, out: Path, kind: str, sharded: bool, broken: str | None) -> list:
    """The clipped sum of a cohort, then without each of its first users: as flat vectors."""
    if broken is not None:
        _break(broken)
    _, run = open_run(store, out, plan_of(kind, l2_clip_norm=0.05), sharded=sharded)
    users = np.arange(8) if kind == "uls" else np.repeat(np.arange(4), 2)
    examples = np.zeros(8, int) if kind == "uls" else np.tile([0, 1], 4)
    cohorts = [Cohort(users=users, examples=examples, offsets=np.arange(9))]
    for user in range(3):
        kept = users != user
        offsets = np.arange(int(kept.sum()) + 1)
        cohorts.append(Cohort(users=users[kept], examples=examples[kept], offsets=offsets))
    found = []
    for cohort in cohorts:
        mine = run.mechanism.dealing.mine(cohort)
        with run._held.own_passes():  # as a step does
            summed = run.mechanism.clip(run.mechanism.collator(mine))
        whole_sum, _ = run.mechanism.dealing.together(summed, 0, scattered=run.mechanism.scattered)
        if not run.mechanism.scattered:
            owners_to_all(current_world(), whole_sum.value)
        parts = [value.flatten() for value in whole_sum.value.values()]
        flat = torch.cat(parts)
        if run.mechanism.scattered:
            flat = torch.cat(_all(flat))
        found.append(flat)
    run.close()
    return found


def _all(part: torch.Tensor) -> list[torch.Tensor]:
    parts: list = [None] * dist.get_world_size()
    dist.all_gather_object(parts, part)
    return parts


def _break(how: str) -> None:
    rank, mine = current_world().rank, Dealing.mine

    def left_out(self, cohort):
        part = mine(self, cohort)
        return part.part(0, 0) if rank == 1 else part

    def everybody(self, cohort):
        mine(self, cohort)
        self._units = cohort.units * self._world.size  # and the check is fooled
        return cohort

    def own(self, cohort):
        other = Cohort(
            users=(cohort.users + rank) % 8, examples=cohort.examples, offsets=cohort.offsets
        )
        return mine(self, other)

    Dealing.mine = {"left out": left_out, "everybody": everybody, "own cohort": own}[how]


def dies(store: Path, out: Path, rank: int, at: int) -> int:
    """A run in which process ``rank`` is killed while it clips step ``at``."""
    _, run = open_run(store, out, plan_of("uls"))
    engine = run.mechanism.engine

    def dying(*arguments, **options):
        if run.done == at and current_world().rank == rank:
            os.kill(os.getpid(), signal.SIGKILL)
        return engine(*arguments, **options)

    run.mechanism.engine = dying
    with run:
        for _ in run:
            run._of.optimizer.step()
    return run.done


def interrupted(store: Path, out: Path, rank: int, at: int) -> tuple[str, int]:
    """Where each process stops when ``rank`` alone hears Ctrl-C in step ``at``; and its steps."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _, run = open_run(store, out, plan_of("uls"))
    taken = 0
    with run:
        try:
            for step in run:
                if step.number == at and current_world().rank == rank:
                    os.kill(os.getpid(), signal.SIGINT)
                run._of.optimizer.step()
                taken += 1
        except Interrupted as stop:
            return stop.place, taken
    return "at the end", taken


def goes_on(store: Path, out: Path) -> int:
    _, run = open_run(store, out, plan_of("uls"), resume=True)
    with run:
        for _ in run:
            run._of.optimizer.step()
    return run.done


def differs(store: Path, out: Path, what: str) -> None:
    """Process 1 would add half the noise, or round otherwise."""
    half = {}
    if current_world().rank == 1 and what == "plan":
        half = {"noise_multiplier": 1.0}
    if current_world().rank == 1 and what == "threads":
        torch.set_num_threads(2)
    open_run(store, out, plan_of("uls", **half))


def released(store: Path, out: Path, sharded: bool, stop_at: int | None, lora: bool = False) -> str:
    """A whole run of `train`, with all that it does beside steps; or one that breaks off."""
    config = replace(
        CONFIG,
        layers=2,
        checkpoint_every=2,
        evaluate_every=2,
        averaging=Averaging.EMA,
        lora_rank=2 if lora else None,
    )
    step = PrivateRun._step

    def breaking(self):
        if self.done == stop_at:
            raise FailureError("broken off")
        return step(self)

    PrivateRun._step = breaking
    resume = (out / "ledger.jsonl").exists()
    secret = resume or stop_at is not None
    try:
        train(
            UserStore.open(store),
            plan_of("uls", steps=6),
            config,
            out=out,
            resume=resume,
            options=RunOptions(sharded=sharded),
            **({} if secret else {"unsafe_seeds": UnsafeSeeds(draws=5, noise=6)}),
        )
    finally:
        PrivateRun._step = step
    return "done"


def trained_where_memory_runs_out(
    store: Path, out: Path, short: int | None
) -> tuple[torch.Tensor, int]:
    """The weights after 20 steps, and halvings; process ``short`` has memory for one example."""
    memory = Memory()
    seeds = {"unsafe_seeds": UnsafeSeeds(draws=5, noise=6)}
    options = {"engine": "reference", "micro_batch": 4, "loss": MemoryLoss(memory)}
    model, run = open_run(store, out, plan_of("uls"), **seeds, **options)
    halvings = 0
    with run:
        memory.most = 1 if current_world().rank == short else memory.most
        for step in run:
            run._of.optimizer.step()
            halvings += step.operator["halvings"]
    return weights_of(model), halvings
