"""Invariant 5: the noise reaches as far as δ is charged for, and its words have float64's bits.

Extreme words (all bits zero, all bits one) are fed to the transforms that the sources call, on the
device that computes: a tail that is cut gives a smaller end, and a formula that overflows gives no
number. And numbers drawn in float32, whatever they are stored in, are seen by their empty last 29
bits: such noise lies on a lattice that can tell the clean sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from userdp.gradients import noise as drawing
from userdp.noise.gaussian import TAIL_BITS, NoiseSampler
from userdp.sampling.coins import secret_generator
from userdp.training.checks.check import Check, Measured
from userdp.training.checks.noise_drawn import Floats
from userdp.training.checks.subject import Subject

_END = math.sqrt(2 * TAIL_BITS * math.log(2))
"""16.23: an exact Gaussian passes it with probability below 2^-190."""
_FAR = 6.0
_HOST_END = math.sqrt(_FAR**2 + _END**2)
_CLOSE = 1e-9
_COUNT = 1 << 12
_MOST_NARROW = 8
"""Of 4,096 numbers; each has 29 empty bits with probability 2^-29, so many with 1e-46."""


class _Words:
    """A generator of NumPy's kind whose ziggurat gives far values, and whose words are zero."""

    def standard_normal(self, *, out: Floats) -> None:
        """Values around 6, of which those beyond are to be drawn again."""
        out[:] = [0.5, -_FAR - 0.5, _FAR + 0.5, 1.0]

    def integers(self, high: int, *, size: int) -> Any:
        """Words of the smallest uniform number."""
        return np.zeros(size, dtype=np.int64)

    def random(self) -> float:
        """Accept at once."""
        return 0.0


class _AllBits(TorchDispatchMode):
    """Within, the words that a generator fills on a device have all bits zero, or all bits one."""

    def __init__(self, word: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._word = word

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ == "random_":
            return args[0].fill_(self._word)
        return func(*args, **kwargs or {})


def _measure(subject: Subject) -> Iterator[Measured]:
    # The functions that the sources call, under the names by which they call them.
    host, on_device = (vars(drawing)[name] for name in ("draw_on_host", "draw_on_device"))
    values = np.empty(4)
    host(_Words(), values)
    yield Measured(
        what=f"how far the farthest noise of the CPU's sampler is from {_HOST_END:.2f} deviations",
        value=float(np.abs(np.abs(values[1:3]) - _HOST_END).max()),
        bound=_CLOSE,
    )
    numbers = np.empty(_COUNT)
    host(secret_generator(), numbers)
    yield _narrow(numbers, "the CPU")
    if subject.noise().sampler_on(subject.device) is not NoiseSampler.DEVICE:
        return
    generator = torch.Generator(device=subject.device)
    generator.seed()
    with torch.no_grad():
        with _AllBits(0):
            largest = on_device(generator, 2)
        with _AllBits(2**63 - 1):
            least = on_device(generator, 4)
        drawn = on_device(generator, _COUNT)
    yield Measured(
        what=f"how far the farthest noise of {subject.device} is from {_END:.2f} deviations",
        value=abs(float(largest[0]) - _END),
        bound=_CLOSE,
    )
    yield Measured(
        what=f"the nearest noise of {subject.device}, in deviations",
        value=float(least.abs().max()),
        bound=_CLOSE,
    )
    yield _narrow(drawn.cpu().numpy(), str(subject.device))


def _narrow(numbers: Floats, where: str) -> Measured:
    return Measured(
        what=f"of {_COUNT:,} numbers of noise drawn on {where}, those that float32 can hold",
        value=float((numbers == numbers.astype(np.float32)).sum()),
        bound=_MOST_NARROW,
    )


CHECK = Check(
    name="noise's tail",
    invariant=5,
    claim="the noise ends where delta is charged for it, and is drawn in float64",
    measure=_measure,
)
