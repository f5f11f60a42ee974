"""Noise on zeros, from a source made as the run's own was: what the checks of noise look at."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from userdp.gradients.shards import local
from userdp.training.checks.subject import Subject
from userdp.training.shares import share

Floats = NDArray[np.float64]


class Piece(NamedTuple):
    """Numbers of one parameter whose noise one process draws.

    Args:
        name: of the parameter.
        owner: the process; None where it is not told by the numbers' places, or there is none.
    """

    name: str
    owner: int | None

    def __str__(self) -> str:
        """For a message."""
        return (
            self.name if self.owner is None else f"{self.name}, the share of process {self.owner}"
        )


_MOST_OF_ONE, _MOST = 1 << 20, 1 << 24
"""Numbers that are drawn for one parameter, and for all."""
_ENOUGH = 1 << 15
"""Numbers by which a standard deviation that is 4% off is seen; small models draw several times."""
_MOST_CALLS = 64


def zeros(subject: Subject, most: int) -> dict[str, torch.Tensor]:
    """A sum of nobody, by parameter; of large ones the first numbers, about ``most`` of them all.

    Of a sharded parameter, of this process's part. A source of parts with a known seed, which only
    tests have, draws for whole sums.
    """
    sizes = {name: local(p).numel() for name, p in subject.parameters.items()}
    cap = max(1, min(_MOST_OF_ONE, most // len(sizes)))
    if subject.scattered and subject.known_noise:
        cap = max(sizes.values())
    return {
        name: torch.zeros(
            local(p).shape if sizes[name] <= cap else (cap,),
            dtype=torch.float64,
            device=subject.device,
        )
        for name, p in subject.parameters.items()
    }


def calls(subject: Subject, numbers: int, enough: int) -> int:
    """How many calls make ``enough`` numbers, within reason; the same on all processes."""
    fewest = min(subject.world.all_gather_object(numbers))
    return min(_MOST_CALLS, math.ceil(enough / max(1, fewest)))


def pieces(subject: Subject, value: Mapping[str, torch.Tensor]) -> dict[Piece, Floats]:
    """The numbers of a sum, by parameter and by the process that draws their noise.

    Guarantee: every number is in a piece, whatever `share` says: what it leaves out is a piece of
    no process, since such numbers are released as they are.
    """
    if not subject.in_shares:
        return {Piece(name, None): _numbers(tensor) for name, tensor in value.items()}
    found, owned = dict[Piece, Floats](), {name: list[tuple[int, int]]() for name in value}
    for rank in range(subject.world.size):
        for name, tensor in share(value, rank, subject.world.size).items():
            found[Piece(name, rank)] = _numbers(tensor)
            begin = int(tensor.storage_offset() - value[name].storage_offset())
            owned[name].append((begin, begin + tensor.numel()))
    for name, tensor in value.items():
        if gaps := list(_gaps(owned[name], tensor.numel())):
            flat = tensor.view(-1)
            nobodys = [_numbers(flat[begin:end]) for begin, end in gaps]
            found[Piece(name, None)] = np.concatenate(nobodys)
    return found


def _gaps(owned: Iterable[tuple[int, int]], numbers: int) -> Iterator[tuple[int, int]]:
    """Begin and end of each stretch of ``numbers`` numbers that lies in none of ``owned``.

    >>> list(_gaps([(5, 8), (0, 4)], 10)), list(_gaps([(0, 3), (3, 6)], 6))
    ([(4, 5), (8, 10)], [])
    """
    done = 0
    for begin, end in sorted(owned):
        if done < begin:
            yield done, begin
        done = max(done, end)
    if done < numbers:
        yield done, numbers


def _numbers(tensor: torch.Tensor) -> Floats:
    found: Floats = tensor.cpu().numpy().ravel()
    return found


def drawn(subject: Subject) -> list[dict[Piece, Floats]]:
    """Noise of at least two steps, by parameter and process, in standard deviations.

    Of a law with memory each step is the first one of a source of its own, since only what is drawn
    anew is known to have the plan's deviation; a source with a known seed is then made once.
    """
    count = sum(value.numel() for value in zeros(subject, _MOST).values())
    rounds = max(2, calls(subject, count, _ENOUGH))
    afresh = subject.law.memory > 0
    if afresh and subject.known_noise:
        rounds = 1
    source = subject.noise()
    steps = []
    for step in range(rounds):
        if step and afresh:
            source = subject.noise()
        value = zeros(subject, _MOST)
        source.add_(value, subject.noise_std)
        found = pieces(subject, value)
        steps.append({piece: numbers / subject.noise_std for piece, numbers in found.items()})
    return steps
