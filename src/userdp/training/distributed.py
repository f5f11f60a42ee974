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
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from userdp.errors import FailureError, UseError
from userdp.gradients.shards import is_sharded
from userdp.training.devices import local_processes
from userdp.training.shares import Row, block, share, stretch

T = TypeVar("T")

_MESSAGES = 1 << 20
"""Numbers that one message sends to all processes from a CPU: four buffers of so many are held
beside a sum, and stay in or near the caches (2^22 and 2^24 took 1.4 and 2.6 times as long)."""

_DEVICE_MESSAGES = 1 << 24
"""The same from an accelerator, where each message has to be launched."""

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
        objects: list[Any] = [value if self.rank == 0 else None]
        if self.size > 1:
            with _failures():
                dist.broadcast_object_list(objects, src=0, group=self._group)
        result: T = objects[0]
        return result

    def all_gather_object(self, value: T) -> list[T]:
        """The ``value`` of every process, by rank, on every process."""
        gathered: list[Any] = [value] * self.size
        if self.size > 1:
            with _failures():
                dist.all_gather_object(gathered, value, group=self._group)
        return gathered

    def any(self, flag: bool) -> bool:
        """Whether ``flag`` is set on any process."""
        return any(self.all_gather_object(flag))

    def on_rank_zero(self, action: Callable[[], T]) -> T:
        """Run ``action`` only on rank 0, and return its result on every process.

        Raises:
            UseError, FailureError: what ``action`` raised, on every process.
        """
        outcome: tuple[Any, UseError | FailureError | None] = (None, None)
        if self.rank == 0:
            try:
                outcome = (action(), None)
            except (UseError, FailureError) as error:
                outcome = (None, error)
        result, failure = self.broadcast_object(outcome)
        if failure is not None:
            raise failure
        done: T = result
        return done

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
                    f"process {rank} has another {different[0]} than process 0: they would not "
                    "do the same to one model and one store",
                    hint="start all processes with the same command, on the same files and on "
                    "machines of one kind",
                )

    def own_share(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Views of the numbers of ``tensors`` that this process owns (`userdp.training.shares`)."""
        return share(tensors, self.rank, self.size)

    def sum_to_shares(self, tensors: Mapping[str, Tensor]) -> None:
        """Add every process's tensors up, in place: afterwards `own_share` holds the sums.

        Each process adds up its own share in float64, in the order of ranks, whatever the backend.
        What the rest of the tensors holds afterwards is of no use.

        Args:
            tensors: contiguous and float64; the same names, shapes and order on all processes.
        """
        if self.size == 1:
            return
        row = Row(tensors.values())

        def add_up(begin: int, end: int, received: Tensor) -> None:
            total, *others = received
            for other in others:
                total += other
            row.write(*self._of(row, self.rank, begin, end), total)

        def fill(begin: int, end: int, sent: Tensor) -> None:
            for rank, to_rank in enumerate(sent):
                row.read(*self._of(row, rank, begin, end), to_rank)

        self._exchange(row, fill, add_up, dtype=torch.float64)

    def shares_to_all(
        self, tensors: Mapping[str, Tensor], *, dtype: torch.dtype = torch.float64
    ) -> None:
        """Give every process, in place, of each number what its owner has there.

        Args:
            tensors: as of `sum_to_shares`; of each process its `own_share` is read.
            dtype: what the numbers are rounded to on their way; afterwards all processes, the
                owner among them, hold the rounded number.
        """
        if self.size == 1:
            return
        row = Row(tensors.values())

        def fill(begin: int, end: int, sent: Tensor) -> None:
            row.read(*self._of(row, self.rank, begin, end), sent[0])
            sent[1:] = sent[0]

        def spread(begin: int, end: int, received: Tensor) -> None:
            for rank, from_rank in enumerate(received):
                row.write(*self._of(row, rank, begin, end), from_rank)

        self._exchange(row, fill, spread, dtype=dtype)

    def _of(self, row: Row, rank: int, begin: int, end: int) -> tuple[int, int]:
        """Where the numbers of ``rank``'s stretch from ``begin`` up to ``end`` lie in the row."""
        first, last = stretch(row.numbers, rank, self.size)
        return min(first + begin, last), min(first + end, last)

    def _exchange(
        self,
        row: Row,
        fill: Callable[[int, int, Tensor], None],
        take: Callable[[int, int, Tensor], None],
        *,
        dtype: torch.dtype,
    ) -> None:
        """Every process sends each process one line of numbers, message by message.

        While a message travels, the one before it is taken and the next one is filled. The four
        buffers are used again and again: a copy of all numbers, in memory that the system must
        first clear, took longer than the exchange itself.

        Args:
            row: of the numbers; its stretches are cut into messages.
            fill: ``fill(begin, end, sent)`` puts into line r of ``sent`` what process r gets, of
                the places from ``begin`` up to ``end`` of stretches. A later message reads no place
                of an earlier one, which may have been written to by then.
            take: ``take(begin, end, received)`` reads from line r what process r sent.
            dtype: of what is sent.
        """
        length = block(row.numbers, self.size)
        most = _MESSAGES if row.device.type == "cpu" else _DEVICE_MESSAGES
        width = max(1, min(length, most // self.size))
        buffers = torch.zeros(2, 2, self.size, width, dtype=dtype, device=row.device)
        travelling: Callable[[], None] | None = None
        for number, begin in enumerate(range(0, length, width)):
            end = min(begin + width, length)
            sent, received = buffers[number % 2]
            fill(begin, end, sent)
            with _failures():
                work = dist.all_to_all_single(received, sent, group=self._group, async_op=True)
            if travelling is not None:
                travelling()
            travelling = partial(self._arrived, work, partial(take, begin, end, received))
        if travelling is not None:
            travelling()

    def _arrived(self, work: Any, take: Callable[[], None]) -> None:
        """Wait for a message, and take it."""
        with _failures():
            work.wait()
        take()

    def broadcast(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy the tensors of rank 0 into every process's, in place, in one broadcast."""
        if self.size == 1:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors.values()])
        with _failures():
            dist.broadcast(flat, src=0, group=self._group)
        _spread(flat, tensors)

    def broadcast_model(self, model: nn.Module) -> None:
        """Give every process the parameters and buffers of rank 0; sharded ones stay."""
        if self.size == 1:
            return
        with torch.no_grad(), _failures():
            for tensor in [*model.parameters(), *model.buffers()]:
                if is_sharded(tensor):
                    continue
                copy = tensor.detach().contiguous()
                # As bytes: not every backend knows every dtype.
                dist.broadcast(copy.view(-1).view(torch.uint8), src=0, group=self._group)
                tensor.copy_(copy)


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
    with _failures():
        # Which of them compute on CUDA is said later (`userdp.training.devices`); those that cannot
        # have a device each never do.
        if torch.cuda.is_available() and torch.cuda.device_count() >= local_processes():
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
    """Tell why a collective failed: some other process ended."""
    try:
        yield
    except RuntimeError as error:
        raise FailureError(
            "another process of this run ended or cannot be reached, so this one stops too: "
            f"{(str(error).splitlines() or ['no reason given'])[0]}",
            hint="see the other processes' messages; then go on with --resume, on any number of "
            "processes: steps in the ledger stay charged",
        ) from error


def _spread(flat: Tensor, tensors: Mapping[str, Tensor]) -> None:
    """Copy a vector into tensors in a row; what it has beyond them is padding."""
    before = 0
    for tensor in tensors.values():
        tensor.copy_(flat[before : before + tensor.numel()].view(tensor.shape))
        before += tensor.numel()
