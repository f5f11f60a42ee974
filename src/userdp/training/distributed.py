r"""Several processes that train one model together, as `torchrun` starts them.

::

    torchrun --nproc-per-node 4 -m userdp train STORE --out RUN …

Only rank 0 holds the run's folder and charges the ledger. The others learn its results through
collectives of `torch.distributed`. If one process ends, the collectives of the others fail, so that
they end too; whatever was charged stays charged.

One step of P processes:

1. every process states what it is about to do; if the statements are equal, rank 0 charges the step
   in the ledger; no process continues before rank 0 has said so (invariant 7);
2. every process draws the *same* cohort, from a generator seeded once for all of them by the
   operating system of rank 0; each unit is given whole to one process, so that all have about as
   many tokens (`deal`);
3. each process clips its own units, in float64, and one without a unit contributes zeros. Each
   tensor of the sum has an *owner*, which gets the sum over all processes (`Dealing.together`);
4. the owner adds noise to its tensors, and hands them to everybody (`SharedNoise`).

Sensitivity (invariant 3): each unit is clipped on one process, so the sum is that of a run in one
process, with the same float64 additions in another order plus P - 1 more
(`userdp.gradients.clip_factors`, point 3). Which process clips a unit depends on the whole cohort;
that moves the unit's contribution only as its place in a batch does, which the engines' margins
cover (docs/engines.md). Processors of different kinds round differently, so they are refused.

Noise (invariant 5). *Claim.* After `SharedNoise.add_` every process holds the same tensors: the sum
of all processes plus noise, independent over coordinates, each N(0, ``noise_std``²) up to the
distance and the assumption of `userdp.noise.gaussian`. *Proof.* Each tensor has one owner, by its
name and shape (`owners`). Only the owner's noise stays: `NoiseSource.add_` adds it once, seeded by
fresh bits of that process's operating system, hence independent of what other processes draw. Every
other process's tensor is overwritten by the owner's. ∎

**In what bits noisy tensors are handed out.** A parameter of at most 32 bits gets them in float32:
half the bytes. It is post-processing, of which the owner too keeps the rounded numbers, so all
processes hold the same bits. Mostly it rounds nothing: a noisy number is a multiple of
g = 2^-20 2^e for the greatest 2^e <= ``noise_std``, and float32 holds every multiple of g up to
2^24 g = 16 2^e, which is more than 8 ``noise_std``. Sums *before* noise stay float64
(docs/scaling.md says why).

**Models in parts**: FSDP says whose a coordinate is (`userdp.gradients.shards.ShardNoise`). **Laws
with memory** are for one process, which has their state.
"""

from __future__ import annotations

import hashlib
import heapq
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar, cast

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from userdp.core.errors import FailureError, UseError
from userdp.gradients import ClippedSum, NoiseSource, trainable_parameters
from userdp.gradients.noise import require_priced
from userdp.gradients.shards import ShardNoise, is_sharded
from userdp.sampling.draws import Cohort
from userdp.training.devices import accelerators, local_processes

T = TypeVar("T")

_PATIENCE = timedelta(hours=6)
"""How long a collective waits: rank 0 may evaluate or write for hours meanwhile. Whatever this is,
a process that ends is noticed at once."""


class World:
    """This process among those that `torch.distributed` has joined.

    Where it has joined none this is a world of one. Every method is a collective: all processes
    call it, in the same order. In a world of one each does its work without communication.

    Attributes:
        rank: of this process, from 0.
        size: how many processes there are.

    >>> World().size, World().rank, World().broadcast_object(7)
    (1, 0, 7)
    """

    def __init__(self) -> None:
        joined = dist.is_available() and dist.is_initialized()
        self.rank = dist.get_rank() if joined else 0
        self.size = dist.get_world_size() if joined else 1

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
            if different := [name for name in first if other.get(name) != first[name]]:
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
                collective(*given, **how)


@contextmanager
def joined() -> Iterator[World]:
    """Join the processes that `torchrun` started, for the block; without it, a world of one.

    Raises:
        FailureError: they did not find each other.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1 or dist.is_initialized():
        yield World()
        return
    # Which of them compute on CUDA is said later (`userdp.training.devices`); those that cannot
    # have a device each never do.
    each = accelerators() >= local_processes()
    with _failures():
        if each:
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        dist.init_process_group("cpu:gloo,cuda:nccl" if each else "gloo", timeout=_PATIENCE)
    try:
        yield World()
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


def shared_secret(world: World) -> int | None:
    """256 bits from the operating system of rank 0, on every process; None in a world of one.

    Secret because it decides every cohort; shared because all processes must draw the same one.
    """
    return None if world.size == 1 else world.broadcast_object(secrets.randbits(256))


def deal(tokens: NDArray[np.int64], processes: int) -> NDArray[np.int64]:
    """The rank that clips each unit, such that all processes have about as many tokens.

    The longest unit first, each to the process with the fewest tokens so far; the fullest process
    then has at most 4/3 of the least possible (Graham 1969, "Bounds on Multiprocessing Timing
    Anomalies"). A function of the numbers only, so that every process computes the same.

    Args:
        tokens: int64 (units,).
        processes: how many.

    Returns:
        int64 (units,), ranks.

    >>> deal(np.array([5, 1, 4, 3]), 2).tolist()
    [0, 0, 1, 1]
    """
    owners = np.zeros(len(tokens), dtype=np.int64)
    loads = [(0, rank) for rank in range(processes)]
    for unit in np.argsort(-tokens, kind="stable").tolist():
        load, owners[unit] = loads[0]
        heapq.heapreplace(loads, (load + max(1, int(tokens[unit])), int(owners[unit])))
    return owners


class Dealing:
    """Deals each step's cohort out to the processes, and adds their clipped sums up.

    Guarantee: each unit of the cohort is clipped by exactly one process, or the step stops before
    its update: that all processes drew the same cohort and dealt it out alike is checked.

    Args:
        world: the processes.
        tokens: the number of tokens of each unit of a cohort.
    """

    def __init__(self, world: World, tokens: Callable[[Cohort], NDArray[np.int64]]) -> None:
        self._world, self._tokens = world, tokens
        self._digest, self._units = b"", 0

    def mine(self, cohort: Cohort) -> Cohort:
        """This process's part of the cohort; all of it in a world of one."""
        if self._world.size == 1:
            return cohort
        owners = deal(self._tokens(cohort), self._world.size)
        parts = (cohort.users, cohort.examples, cohort.offsets, owners)
        self._digest = hashlib.sha256(b"".join(part.tobytes() for part in parts)).digest()
        self._units = cohort.units
        own, sizes = owners == self._world.rank, np.diff(cohort.offsets)
        rows, offsets = np.repeat(own, sizes), np.concatenate([[0], np.cumsum(sizes[own])])
        return Cohort(users=cohort.users[rows], examples=cohort.examples[rows], offsets=offsets)

    def together(
        self, summed: ClippedSum, rows: int, *, scattered: bool = False
    ) -> tuple[ClippedSum, int]:
        """The clipped sum of all processes, each tensor of it on its owner; and all rows.

        Norms, losses and counts are those of all units, on every process.

        Args:
            summed: of this process's part; its tensors are contiguous and float64, with the same
                names, shapes and order on all processes.
            rows: that this process clipped.
            scattered: the values are already this process's parts of the whole sum (a sharded
                model), and stay as they are.

        Raises:
            FailureError: the processes did not clip one cohort, each unit once.
        """
        if self._world.size == 1:
            return summed, rows
        # All but the value, which is as large as the model and goes by a reduction of its own.
        gathered = self._world.all_gather_object((self._digest, rows, replace(summed, value={})))
        digests, all_rows, parts = zip(*gathered, strict=True)
        if set(digests) != {self._digest} or sum(len(p.norms) for p in parts) != self._units:
            raise FailureError(
                "the processes of this run did not draw the same cohort: training stopped here",
                hint="the step stays charged; start all processes with the same command",
            )
        if not scattered:
            for name, owner in owners(summed.value, self._world.size).items():
                self._world.reduce(summed.value[name], to=owner)
        whole, *others = parts
        for other in others:
            whole.append(other)
        return replace(whole, value=summed.value), sum(all_rows)


def owners(value: Mapping[str, Tensor], processes: int) -> dict[str, int]:
    """The rank that sums, noises and hands out each tensor: all have about as many numbers.

    Public, a function of names, order and shapes, so that every process computes the same.

    >>> import torch
    >>> owners({"a": torch.zeros(2), "b": torch.zeros(3, 3), "c": torch.zeros(4)}, 2)
    {'a': 1, 'b': 0, 'c': 1}
    """
    sizes = np.array([tensor.numel() for tensor in value.values()], dtype=np.int64)
    return dict(zip(value, deal(sizes, processes).tolist(), strict=True))


def owners_to_all(
    world: World, value: Mapping[str, Tensor], *, short: frozenset[str] = frozenset()
) -> None:
    """Give every process, in place, of each tensor what its owner has there.

    Args:
        world: the processes.
        value: contiguous; the same names, shapes and order on all processes.
        short: names of tensors that travel in float32. Afterwards all processes, the owner among
            them, hold the rounded numbers.
    """
    for name, owner in owners(value, world.size).items():
        sent = value[name].float() if name in short else value[name]
        world.broadcast(sent, source=owner)
        value[name].copy_(sent)


class SharedNoise(NoiseSource):
    """Independent Gaussian noise, of which each process draws that of the tensors it owns.

    Guarantee: see the module.

    Args:
        world: the processes.
        model: whose sum is noised. Where it is sharded, each process draws the noise of its parts,
            and that of other numbers goes by owners.
        unsafe_noise_seed: FOR TESTS ONLY: the noise of one process with this seed, which every
            process draws whole.
    """

    def __init__(
        self, world: World, model: nn.Module, *, unsafe_noise_seed: int | None = None
    ) -> None:
        parameters = trainable_parameters(model)
        self._world, self._parts = world, ShardNoise(model, unsafe_noise_seed=unsafe_noise_seed)
        self._sharded = frozenset(n for n, p in parameters.items() if is_sharded(p))
        self._narrow = frozenset(n for n, p in parameters.items() if p.element_size() <= 4)
        if unsafe_noise_seed is not None and self._sharded:
            unsafe_noise_seed += 1  # neither repeats the other
        super().__init__(unsafe_noise_seed=unsafe_noise_seed)

    def add_(self, value: dict[str, Tensor], noise_std: float) -> None:
        """Noise for what this process owns of ``value``; then everybody's, on every process.

        Args:
            value: summed by `Dealing.together`; of a sharded model this process's parts.
            noise_std: as of `NoiseSource.add_`.
        """
        if self._sharded.issuperset(value):
            self._parts.add_(value, noise_std)
            return
        # What one step releases is what all owners have together.
        require_priced(sum(tensor.numel() for tensor in value.values()))
        # One process with a known seed draws all numbers in this order.
        super().add_(value if self.unsafe else self._owned(value), noise_std)
        owners_to_all(self._world, value, short=self._narrow)

    def _owned(self, value: Mapping[str, Tensor]) -> dict[str, Tensor]:
        by_name = owners(value, self._world.size)
        return {name: one for name, one in value.items() if by_name[name] == self._world.rank}


def source_for(
    world: World, model: nn.Module, *, unsafe_noise_seed: int | None = None
) -> NoiseSource:
    """What draws each coordinate's noise once, however the model's sum is held.

    Raises:
        UseError: a model of which a part is sharded.
    """
    sharded = set(map(is_sharded, trainable_parameters(model).values()))
    if len(sharded) > 1:
        raise UseError("some trained parameters are sharded and others not: shard all, or none")
    if world.size == 1 and not any(sharded):
        return NoiseSource(unsafe_noise_seed=unsafe_noise_seed)
    return SharedNoise(world, model, unsafe_noise_seed=unsafe_noise_seed)
