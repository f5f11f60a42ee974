r"""A private run on several processes: who draws, who clips, who charges, who draws the noise.

One step of P processes:

1. every process states what it is about to do; the leader compares, and charges the step in the
   ledger; nobody goes on before it has said so (invariant 7);
2. every process draws the *same* cohort, from a generator that the leader's operating system
   seeded once for all; whole units are dealt out by numbers of tokens (`deal`);
3. each clips its own units, in float64; one reduction adds the sums up on the leader;
4. the leader alone has a source of noise: it adds noise once (invariant 5) and hands the noisy sum
   to all. A process without a unit hands in zeros.

Sensitivity (invariant 3): a unit is clipped on one process, so the sum is that of one process, in
another order of the same float64 additions plus P - 1 (`userdp.gradients.clipping`, point 3).
Which process clips a unit depends on the whole cohort; that moves its contribution only as its
place in a batch does, which the engines' margins cover (docs/engines.md); processors of several
kinds, which round differently, are refused.
"""

from __future__ import annotations

import hashlib
import heapq
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from userdp.errors import FailureError
from userdp.gradients import ClippedSum, NoiseSource, trainable_parameters
from userdp.gradients.noise import Noise, usual_sampler
from userdp.gradients.shards import ShardNoise
from userdp.ledger import RunFolder, RunLedger
from userdp.noise.gaussian import NoiseSampler
from userdp.plan import StepRecord
from userdp.sampling.cohort import Cohort
from userdp.training.distributed import World
from userdp.training.runs import OpenRun


def shared_secret(world: World, unsafe_seed: int | None) -> int | None:
    """256 bits of the leader's operating system for everybody's cohorts; None where not needed."""
    if world.size == 1 or unsafe_seed is not None:
        return None
    return world.tell(secrets.randbits(256))


def deal(tokens: NDArray[np.int64], processes: int) -> NDArray[np.int64]:
    """The process of each unit, so that all have about as many tokens.

    The longest first, each to whoever has least so far; at worst 4/3 of the best (Graham 1969,
    "Bounds on Multiprocessing Timing Anomalies"). A function of the numbers alone, so that every
    process finds the same.

    Args:
        tokens: int64 (units,).
        processes: how many.

    >>> deal(np.array([5, 1, 4, 3]), 2).tolist()
    [0, 0, 1, 1]
    """
    owners = np.zeros(len(tokens), dtype=np.int64)
    loads = [(0, rank) for rank in range(processes)]
    for unit in np.argsort(-tokens, kind="stable").tolist():
        load, rank = heapq.heappop(loads)
        owners[unit] = rank
        heapq.heappush(loads, (load + max(1, int(tokens[unit])), rank))
    return owners


def take(cohort: Cohort, units: NDArray[np.int64]) -> Cohort:
    """Some of a cohort's units, in ascending order, as a cohort of their own."""
    starts, sizes = cohort.offsets[units], np.diff(cohort.offsets)[units]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    rows = np.repeat(starts - offsets[:-1], sizes) + np.arange(offsets[-1])
    return Cohort(users=cohort.users[rows], examples=cohort.examples[rows], offsets=offsets)


class Dealing:
    """Deals each step's cohort out, and brings the clipped sums together again.

    Guarantee: each unit of the cohort is clipped by exactly one process, or the step stops before
    its update: all processes drew the same cohort and dealt it out alike, which is checked.

    Args:
        world: the processes.
        tokens: how many each unit of a cohort has.
    """

    def __init__(self, world: World, tokens: Callable[[Cohort], NDArray[np.int64]]) -> None:
        self._world = world
        self._tokens = tokens
        self._digest = b""
        self._units = 0

    def mine(self, cohort: Cohort) -> Cohort:
        """This process's part of the cohort; all of it, where there is one process."""
        if self._world.size == 1:
            return cohort
        owners = deal(self._tokens(cohort), self._world.size)
        parts = (cohort.users, cohort.examples, cohort.offsets, owners)
        self._digest = hashlib.sha256(b"".join(part.tobytes() for part in parts)).digest()
        self._units = cohort.units
        return take(cohort, (owners == self._world.rank).nonzero()[0])

    def together(
        self, summed: ClippedSum, rows: int, *, scattered: bool = False
    ) -> tuple[ClippedSum, int]:
        """Everybody's clipped sum, as `ClippedSum.value` on the leader alone; and all rows.

        Norms, losses and counts are those of all units, on every process. ``scattered``: the values
        are parts of everybody's sum already, and stay as they are.

        Raises:
            FailureError: the processes did not clip one cohort, each unit once.
        """
        if self._world.size == 1:
            return summed, rows
        own: dict[str, Any] = {
            "digest": self._digest,
            "norms": summed.norms,
            "losses": summed.losses,
            "non_finite": summed.non_finite,
            "sensitivity": summed.sensitivity,
            "rows": rows,
        }
        heard = self._world.hear(own)
        units = sum(len(one["norms"]) for one in heard)
        if any(one["digest"] != self._digest for one in heard) or units != self._units:
            raise FailureError(
                "the processes of this run did not draw the same cohort, so a user may count "
                "twice or not at all; training stopped before this update",
                hint="the step stays charged; start all processes with the same command",
            )
        if not scattered:
            self._world.sum_to_leader(summed.value)
        whole = replace(
            summed,
            norms=torch.cat([one["norms"] for one in heard]),
            losses=torch.cat([one["losses"] for one in heard]),
            non_finite=sum(one["non_finite"] for one in heard),
            sensitivity=max(one["sensitivity"] for one in heard),
        )
        return whole, sum(one["rows"] for one in heard)


class LeaderNoise:
    """Noise that the leader adds, once, and everybody receives.

    Guarantee: as `NoiseSource`, once for all processes: only the leader has a source.
    """

    def __init__(self, world: World, *, unsafe_noise_seed: int | None = None) -> None:
        self._world = world
        self._source = NoiseSource(unsafe_noise_seed=unsafe_noise_seed) if world.leads else None
        self._unsafe = unsafe_noise_seed is not None

    @property
    def unsafe(self) -> bool:
        """Whether the noise comes from a known seed, so that no privacy may be claimed."""
        return self._unsafe

    def sampler_on(self, device: torch.device) -> NoiseSampler:
        """What the leader draws with; all processes compute on one kind of device."""
        return usual_sampler(device)

    def add_(self, value: dict[str, Tensor], noise_std: float) -> None:
        """The leader's ``value`` with noise, on every process."""
        if self._source is not None:
            self._source.add_(value, noise_std)
        self._world.spread(value)


class ScatteredNoise:
    """Noise for a sum of which each process holds a part, and for numbers that all share.

    Guarantee: each coordinate's noise is drawn once: a sharded parameter's by the process that
    holds the part (`userdp.gradients.shards.ShardNoise`), any other number's by the leader.
    """

    def __init__(
        self, world: World, model: nn.Module, *, unsafe_noise_seed: int | None = None
    ) -> None:
        other = None if unsafe_noise_seed is None else unsafe_noise_seed + 1
        self._names = set(trainable_parameters(model))
        self._parts = ShardNoise(model, unsafe_noise_seed=unsafe_noise_seed)
        self._leader = LeaderNoise(world, unsafe_noise_seed=other)

    @property
    def unsafe(self) -> bool:
        """Whether the noise comes from a known seed, so that no privacy may be claimed."""
        return self._leader.unsafe

    def sampler_on(self, device: torch.device) -> NoiseSampler:
        """What each process draws with; all compute on one kind of device."""
        return self._parts.sampler_on(device)

    def add_(self, value: dict[str, Tensor], noise_std: float) -> None:
        """Noise for this process's parts, or the leader's for all."""
        noise: Noise = self._parts if set(value) <= self._names else self._leader
        noise.add_(value, noise_std)


class _QuietFolder(RunFolder):
    """The run's folder as those see it who write nothing."""

    def log(self, values: dict[str, Any]) -> None:
        """The leader does."""


class SharedLedger:
    """The run's ledger: the leader writes, the others wait for its word.

    Attributes:
        attempts, last_clip_norm: as `RunLedger`'s.
    """

    def __init__(self, world: World, ledger: RunLedger | None, facts: Mapping[str, Any]) -> None:
        self._world = world
        self._ledger = ledger
        self._steps: int = facts["steps"]
        self.attempts: int = facts["attempts"]
        self.last_clip_norm: float | None = facts["last_clip_norm"]

    @property
    def remaining(self) -> int:
        """Steps that may still be attempted."""
        return max(0, self._steps - self.attempts)

    def attempt(self, step: StepRecord) -> int:
        """Charge one step for all processes; see `RunLedger.attempt`.

        Raises:
            FailureError: as there, or the processes are not about to take the same step.
        """
        steps = self._world.hear(step)

        def charge() -> int:
            for rank, other in enumerate(steps):
                if other != step:
                    raise FailureError(
                        f"ledger and sampler disagree: process {rank} is about to do {other}, "
                        f"process 0 {step}; training stopped before this update"
                    )
            assert self._ledger is not None
            return self._ledger.attempt(step)

        self.attempts = self._world.led(charge)
        self.last_clip_norm = step.l2_clip_norm
        return self.attempts


class SharedRun:
    """An `OpenRun` of several processes: the leader holds the folder.

    Args:
        world: the processes.
        folder: of the run.
        opened: what the leader's `open_run` gave; None on the others.
        facts: steps, attempts and last clip norm of its ledger.
    """

    def __init__(
        self, world: World, folder: RunFolder, opened: OpenRun | None, facts: Mapping[str, Any]
    ) -> None:
        self._world = world
        self._opened = opened
        self._closed = False
        self.folder = folder if world.leads else _QuietFolder(folder.path)
        self.ledger = SharedLedger(world, None if opened is None else opened.ledger, facts)

    def finish(self) -> None:
        """Note the end in the ledger and settle with the store; a collective."""
        self._world.led(lambda: None if self._opened is None else self._opened.finish())

    @property
    def closed(self) -> bool:
        """Whether the folder was let go."""
        return self._closed

    def close(self) -> None:
        """Let go of the folder; twice does no harm."""
        self._closed = True
        if self._opened is not None:
            self._opened.close()


def open_together(world: World, open_: Callable[[], OpenRun], folder: RunFolder) -> Any:
    """What ``open_`` opens, on one process; on several the leader's, shared.

    Returns:
        `OpenRun` or `SharedRun`.

    Raises:
        UseError, FailureError: as `open_run`, on every process.
    """
    if world.size == 1:
        return open_()
    held: list[OpenRun] = []

    def lead() -> dict[str, Any]:
        held.append(open_())
        ledger = held[0].ledger
        return {
            "steps": ledger.attempts + ledger.remaining,
            "attempts": ledger.attempts,
            "last_clip_norm": ledger.last_clip_norm,
        }

    facts = world.led(lead)
    return SharedRun(world, folder, held[0] if held else None, facts)
