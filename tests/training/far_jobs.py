"""What the processes of `test_far_processes` do, each with an accelerator of its own."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from unittest import mock

import torch.distributed as dist

from tests.gradients.far_device import FAR, far_machine
from tests.training.distributed_jobs import plan_of, weights_of
from tests.training.toy import CONFIG
from userdp.data.store import UserStore
from userdp.errors import FailureError
from userdp.gradients.engines.task import Task
from userdp.training.config import Averaging, RunOptions, UnsafeSeeds
from userdp.training.distributed import current_world
from userdp.training.distributed_run import Dealing
from userdp.training.loop import train
from userdp.training.private_run import PrivateRun


def trained(
    store: Path, out: Path, lora: bool, sharded: bool, broken: bool
) -> tuple[list[float], int]:
    """A run: the weights, and how many products were computed on this process's accelerator.

    That of a process by itself is on the CPU, and whole. A broken one forgets where its part of the
    sum lies.
    """
    told, several, honest, made = [], dist.get_world_size() > 1, Dealing.together, Task.zero

    def together(self, summed, rows, **options):
        summed = replace(summed, value={n: v.cpu() for n, v in summed.value.items()})
        return honest(self, summed, rows, **options)

    def zero(self, dtype):
        total = made(self, dtype)
        return replace(total, value={name: part.cpu() for name, part in total.value.items()})

    def note(self):
        told.extend(weights_of(self._model).tolist())

    with far_machine(index=current_world().rank) as machine, ExitStack() as patched:
        patched.enter_context(mock.patch.object(PrivateRun, "save", note))
        if broken and sharded:
            patched.enter_context(mock.patch.object(Task, "zero", zero))
        elif broken:
            patched.enter_context(mock.patch.object(Dealing, "together", together))
        train(
            UserStore.open(store),
            plan_of("uls", steps=3),
            replace(CONFIG, lora_rank=2 if lora else None),
            out=out,
            options=RunOptions(device=FAR.type if several else "cpu", sharded=sharded and several),
            unsafe_seeds=UnsafeSeeds(draws=5, noise=6),
        )
    return told, machine.products


def saved(store: Path, out: Path, lora: bool, sharded: bool) -> int:
    """A run that breaks off and goes on, with all that `train` does; the products on each device.

    Checkpoints, a moving average, evaluations on held-out people, and the model that it releases.
    """
    config = replace(
        CONFIG,
        lora_rank=2 if lora else None,
        checkpoint_every=1,
        evaluate_every=2,
        averaging=Averaging.EMA,
    )
    honest = PrivateRun._step

    def step(self):
        if self.done == 2:
            raise FailureError("broken off")
        return honest(self)

    def run(*, resume: bool) -> None:
        train(
            UserStore.open(store),
            plan_of("uls", steps=4),
            config,
            out=out,
            resume=resume,
            options=RunOptions(device=FAR.type, sharded=sharded),
        )

    with far_machine(index=current_world().rank) as machine:
        with mock.patch.object(PrivateRun, "_step", step), suppress(FailureError):
            run(resume=False)
        before = machine.products
        run(resume=True)
    assert 0 < before < machine.products, "it did not compute there"
    return machine.products
