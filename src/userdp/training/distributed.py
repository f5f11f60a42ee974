"""`World`: the processes that train one model together, as `torchrun` starts them.

::

    torchrun --nproc-per-node 4 -m userdp train STORE --out RUN …

Rank 0 leads: it alone holds the run's folder, charges the ledger, and draws the noise. What it says
reaches the others through collectives of `torch.distributed`; a process that ends takes the others
with it, and whatever was charged stays charged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from userdp.errors import FailureError, UseError
from userdp.gradients.shards import is_sharded

T = TypeVar("T")

_PATIENCE = timedelta(hours=6)
"""The others wait while the leader evaluates or writes; a process that ends is noticed at once."""


class World:
    """This process among those that train together; alone, where there are no others.

    Every method but the properties is a collective: all processes call it, in the same order.

    Args:
        group: of the processes; None for a process alone.

    Attributes:
        rank: of this process, from 0; 0 leads.
        size: how many there are.

    >>> World().size, World().leads, World().tell(7)
    (1, True, 7)
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)

    @property
    def leads(self) -> bool:
        """Whether this is the process that writes."""
        return self.rank == 0

    def tell(self, value: T) -> T:
        """The leader's ``value``, on every process."""
        if self.size == 1:
            return value
        told: list[Any] = [value if self.leads else None]
        with _failures():
            dist.broadcast_object_list(told, src=0, group=self._group)
        result: T = told[0]
        return result

    def hear(self, value: T) -> list[T]:
        """Everybody's ``value``, by rank, on every process."""
        if self.size == 1:
            return [value]
        heard: list[Any] = [None] * self.size
        with _failures():
            dist.all_gather_object(heard, value, group=self._group)
        return heard

    def led(self, action: Callable[[], T]) -> T:
        """What the leader's ``action`` returns, on every process; or the error it raises.

        Raises:
            UseError, FailureError: as the leader's action did.
        """
        if self.size == 1:
            return action()
        result: tuple[str, Any, str | None] = ("", None, None)
        if self.leads:
            try:
                result = ("done", action(), None)
            except (UseError, FailureError) as error:
                self.tell((type(error).__name__, str(error), error.hint))
                raise
        kind, value, hint = self.tell(result)
        if kind == "done":
            done: T = value
            return done
        raise (UseError if kind == "UseError" else FailureError)(value, hint=hint)

    def require_same(self, facts: Mapping[str, str]) -> None:
        """Refuse processes that are not about to do the same thing.

        Raises:
            UseError: names what differs; on every process.
        """
        heard = self.hear(dict(facts))
        for rank, other in enumerate(heard):
            different = [name for name in heard[0] if other.get(name) != heard[0][name]]
            if different:
                raise UseError(
                    f"process {rank} has another {different[0]} than process 0: they would not "
                    "do the same to one model and one store",
                    hint="start all processes with the same command, on the same files and on "
                    "machines of one kind",
                )

    def sum_to_leader(self, value: Mapping[str, Tensor]) -> None:
        """Add up everybody's float64 tensors in place, into the leader's; one reduction.

        What the others' tensors hold afterwards is of no use.
        """
        if self.size == 1:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in value.values()])
        with _failures():
            dist.reduce(flat, dst=0, op=dist.ReduceOp.SUM, group=self._group)
        _into(flat, value)

    def spread(self, value: Mapping[str, Tensor]) -> None:
        """Put the leader's tensors into everybody's; one broadcast."""
        if self.size == 1:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in value.values()])
        with _failures():
            dist.broadcast(flat, src=0, group=self._group)
        _into(flat, value)

    def align(self, model: nn.Module) -> None:
        """Give every process the leader's parameters and buffers; those that are sharded stay."""
        if self.size == 1:
            return
        with torch.no_grad(), _failures():
            for tensor in [*model.parameters(), *model.buffers()]:
                if is_sharded(tensor):
                    continue
                held = tensor.detach().contiguous()
                dist.broadcast(held.view(-1).view(torch.uint8), src=0, group=self._group)
                tensor.copy_(held)


def current_world() -> World:
    """The processes that `torch.distributed` has joined; this one alone, where it has not."""
    if dist.is_available() and dist.is_initialized():
        return World(dist.group.WORLD)
    return World()


@contextmanager
def joined() -> Iterator[World]:
    """Join the processes that `torchrun` started, for the block; alone without `torchrun`.

    Raises:
        FailureError: they did not find each other.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield current_world()
        return
    with _failures():
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            dist.init_process_group("cpu:gloo,cuda:nccl", timeout=_PATIENCE)
        else:
            dist.init_process_group("gloo", timeout=_PATIENCE)
    try:
        yield current_world()
    finally:
        dist.destroy_process_group()


@contextmanager
def _failures() -> Iterator[None]:
    """A collective that breaks: some other process ended."""
    try:
        yield
    except RuntimeError as error:
        raise FailureError(
            "another process of this run ended or cannot be reached, so this one stops too: "
            f"{(str(error).splitlines() or ['no reason given'])[0]}",
            hint="see the other processes' messages; then go on with --resume, on any number of "
            "processes: steps in the ledger stay charged",
        ) from error


def _into(flat: Tensor, value: Mapping[str, Tensor]) -> None:
    begin = 0
    for tensor in value.values():
        tensor.copy_(flat[begin : begin + tensor.numel()].view(tensor.shape))
        begin += tensor.numel()
