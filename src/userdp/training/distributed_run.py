r"""A private run on several processes: which of them charges, draws, clips and adds noise.

One step of P processes:

1. every process states what it is about to do; rank 0 compares the statements and charges the step
   in the ledger; no process continues before rank 0 has said so (invariant 7);
2. every process draws the *same* cohort, from a generator seeded once for all of them by the
   operating system of rank 0; each unit is given whole to one process, so that all have about as
   many tokens (`deal`);
3. each process clips its own units, in float64, and one without a unit contributes zeros. One
   exchange adds the sums up: each process does so for its own share of the numbers
   (`userdp.training.shares`);
4. each process adds noise to its own share, so that each number gets it once (invariant 5; proven
   in `userdp.training.shared_noise`). A second exchange gives everybody all noisy numbers.

Sensitivity (invariant 3): each unit is clipped on one process, so the sum is that of a run in one
process, with the same float64 additions in another order plus P - 1 more
(`userdp.gradients.clipping`, point 3). Which process clips a unit depends on the whole cohort; that
moves the unit's contribution only as its place in a batch does, which the engines' margins cover
(docs/engines.md). Processors of different kinds round differently, so they are refused.
"""

from __future__ import annotations

import hashlib
import heapq
import secrets
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from userdp.errors import FailureError
from userdp.gradients import ClippedSum
from userdp.sampling.cohort import Cohort
from userdp.training.distributed import World


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
    """Deals each step's cohort out to the processes, and adds their clipped sums up.

    Guarantee: each unit of the cohort is clipped by exactly one process, or the step stops before
    its update: that all processes drew the same cohort and dealt it out alike is checked.

    Args:
        world: the processes.
        tokens: the number of tokens of each unit of a cohort.
    """

    def __init__(self, world: World, tokens: Callable[[Cohort], NDArray[np.int64]]) -> None:
        self._world = world
        self._tokens = tokens
        self._digest = b""
        self._units = 0

    def mine(self, cohort: Cohort) -> Cohort:
        """This process's part of the cohort; all of it in a world of one."""
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
        """The clipped sum of all processes, of its ``value`` this process's share; and all rows.

        Norms, losses and counts are those of all units, on every process.

        Args:
            summed: of this process's part.
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
                "the processes of this run did not draw the same cohort, so a user may count "
                "twice or not at all; training stopped before this update",
                hint="the step stays charged; start all processes with the same command",
            )
        if not scattered:
            self._world.sum_to_shares(summed.value)
        whole = replace(
            summed,
            norms=torch.cat([part.norms for part in parts]),
            losses=torch.cat([part.losses for part in parts]),
            non_finite=sum(part.non_finite for part in parts),
            sensitivity=max(part.sensitivity for part in parts),
            failed=sum(part.failed for part in parts),
            halvings=sum(part.halvings for part in parts),
        )
        return whole, sum(all_rows)
