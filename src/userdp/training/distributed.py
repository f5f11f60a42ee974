"""`World`: the processes that train one model together, as `torchrun` starts them.

::

    torchrun --nproc-per-node 4 -m userdp train STORE --out RUN …

Only rank 0 holds the run's folder and charges the ledger. The others learn its results through
collectives of `torch.distributed`. If one process ends, the collectives of the others fail, so that
they end too; whatever was charged stays charged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from userdp.core.errors import FailureError, UseError
from userdp.gradients.shards import is_sharded
from userdp.training.devices import accelerators, local_processes

T = TypeVar("T")

_PATIENCE = timedelta(hours=6)
"""How long a collective waits: rank 0 may evaluate or write for hours meanwhile. Whatever this is,
a process that ends is noticed at once."""


class World:
    """This process among those that train together; a world of one, where there are no others.

    Every method is a collective: all processes call it, in the same order. In a world of one each
    does what it says without communication.

    Args:
        group: of the processes; None for a world of one.

    Attributes:
        rank: of this process, from 0.
        size: how many processes there are.

    >>> World().size, World().rank, World().broadcast_object(7)
    (1, 0, 7)
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)

    def broadcast_object(self, value: T) -> T:
        """The ``value`` of rank 0, on every process."""
        objects: list[T | None] = [value if self.rank == 0 else None]
        self._together(dist.broadcast_object_list, objects, src=0)
        return cast(T, objects[0])

    def all_gather_object(self, value: T) -> list[T]:
        """The ``value`` of every process, by rank, on every process."""
        gathered: list[Any] = [value] * self.size
        self._together(dist.all_gather_object, gathered, value)
        return gathered

    def any(self, flag: bool) -> bool:
        """Whether ``flag`` is set on any process."""
        return any(self.all_gather_object(flag))

    def on_rank_zero(self, action: Callable[[], T]) -> T:
        """Run ``action`` only on rank 0, and return its result on every process.

        Raises:
            UseError, FailureError: what ``action`` raised, on every process.
        """
        outcome: T | UseError | FailureError | None = None
        if self.rank == 0:
            try:
                outcome = action()
            except (UseError, FailureError) as error:
                outcome = error
        outcome = self.broadcast_object(outcome)
        if isinstance(outcome, UseError | FailureError):
            raise outcome
        return cast(T, outcome)

    def require_same(self, facts: Mapping[str, str]) -> None:
        """Refuse processes that are not about to do the same thing.

        Raises:
            UseError: names what differs; on every process.
        """
        first, *others = self.all_gather_object(dict(facts))
        for rank, other in enumerate(others, start=1):
            different = [name for name in first if other.get(name) != first[name]]
            if different:
                raise UseError(
                    f"process {rank} has another {different[0]} than process 0",
                    hint="start all with one command, on the same files, on machines of one kind",
                )

    def reduce(self, tensor: Tensor, *, to: int) -> None:
        """Add every process's ``tensor`` up in place, on process ``to``; elsewhere it is of no use.

        The order of the additions is the backend's: that of a sum in another order.

        Args:
            tensor: contiguous; of one shape and dtype on all processes.
            to: a rank.
        """
        self._together(dist.reduce, tensor, dst=to)

    def broadcast(self, tensor: Tensor, *, source: int = 0) -> None:
        """Copy the ``tensor`` of process ``source`` into every process's, in place."""
        if self.size == 1:
            return
        copy = tensor.detach().contiguous()
        with torch.no_grad():
            # As bytes: not every backend knows every dtype.
            self._together(dist.broadcast, copy.view(-1).view(torch.uint8), src=source)
            if not tensor.is_contiguous():
                tensor.copy_(copy)

    def broadcast_model(self, model: nn.Module) -> None:
        """Give every process the parameters and buffers of rank 0; sharded ones stay."""
        for tensor in [*model.parameters(), *model.buffers()]:
            if not is_sharded(tensor):
                self.broadcast(tensor)

    def _together(self, collective: Callable[..., object], *given: object, **how: int) -> None:
        """Call a collective of `torch.distributed`, unless this process is by itself."""
        if self.size > 1:
            with _failures():
                collective(*given, group=self._group, **how)


def current_world() -> World:
    """The processes that `torch.distributed` has joined; if it has joined none, a world of one."""
    if dist.is_available() and dist.is_initialized():
        return World(dist.group.WORLD)
    return World()


@contextmanager
def joined() -> Iterator[World]:
    """Join the processes that `torchrun` started, for the block; without it, a world of one.

    Raises:
        FailureError: they did not find each other.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield current_world()
        return
    # Which of them compute on CUDA is said later (`userdp.training.devices`); those that cannot
    # have a device each never do.
    each = accelerators() >= local_processes()
    with _failures():
        if each:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("cpu:gloo,cuda:nccl" if each else "gloo", timeout=_PATIENCE)
    try:
        yield current_world()
    finally:
        dist.destroy_process_group()


@contextmanager
def _failures() -> Iterator[None]:
    """Tell why a collective failed: some other process ended."""
    try:
        yield
    except RuntimeError as error:
        raise FailureError(
            "another process of this run ended or cannot be reached, so this one stops too: "
            f"{(str(error).splitlines() or ['no reason given'])[0]}",
            hint="see the others' messages; then go on with --resume, on any number of processes",
        ) from error
