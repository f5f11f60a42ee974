r"""Gaussian noise: once per logical step, in float64, from cryptographically seeded generators.

**Seeds.** Each block of 2^18 numbers has a generator of its own (NumPy's PCG64DXSM), seeded with
256 fresh bits from the operating system. No state outlives a call: nothing to checkpoint, leak,
replay after a crash, or share between forked processes. The generator itself is statistical, not
cryptographic: an adversary who could reconstruct one block's state from a noisy release would learn
that block, and nothing of any other.

**Floating point** (Mironov 2012, "On significance of the least significant bits"; Haney et al.
2022; Holohan & Braghin 2021). A Gaussian sampled in floating point hits only some of the
representable numbers, and which sums can occur depends on the data. What is done here: sum and
noise are added in float64, and the result is rounded to multiples of a public power of two, at most
:math:`2^{-20}` times the noise's standard deviation. Every data set's output then lies on the same
grid, each of whose cells holds some 2^32 float64 numbers, so the low-order bits that the attacks
read are gone, and rounding costs no privacy. What is *not* done: an exact discrete Gaussian, or
the sum of several Gaussians of Holohan & Braghin. The probabilities of the cells are not proven
to be exactly those of a Gaussian; the claimed epsilon assumes that the difference does not matter.
This assumption is `FLOATING_POINT_ASSUMPTION`, of grade "theoretical": no attack on this
construction is known to us, and no proof excludes one. Timing is not considered.
"""

from __future__ import annotations

import math
import os
import secrets
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from userdp.errors import UseError
from userdp.guarantees import require_count

FLOATING_POINT_ASSUMPTION = (
    "Noise is a float64 Gaussian rounded to a public grid of 2^-20 standard deviations; that its "
    "probabilities are those of an exact Gaussian is assumed, not proven (grade: theoretical)."
)

_BLOCK = 1 << 18
_SEGMENT = 16 * _BLOCK
_GRID_BITS = 20
_LEAST_STD, _MOST_STD = 1e-30, 1e30


class NoiseSource:
    """Adds Gaussian noise to a sum; every call draws new noise.

    Guarantee: one call adds independent N(0, noise_std²) to every coordinate (up to the
    floating-point assumption in the module's docstring), never the same noise twice: each block is
    seeded afresh by the operating system.

    Args:
        unsafe_noise_seed: FOR TESTS ONLY: noise that anybody who knows the seed can subtract. Two
            sources with one seed repeat each other, so a resumed run must not use the same seed.
        threads: most threads to draw with; None takes up to 8. The result does not depend on it.

    Raises:
        UseError: a seed or a number of threads out of range.

    >>> value = {"w": torch.zeros(3, dtype=torch.float64)}
    >>> NoiseSource().add_(value, noise_std=1.0)
    >>> bool((value["w"] != 0).all())
    True
    """

    def __init__(self, *, unsafe_noise_seed: int | None = None, threads: int | None = None) -> None:
        if unsafe_noise_seed is not None:
            require_count("unsafe_noise_seed", unsafe_noise_seed, at_least=0, at_most=2**256 - 1)
        if threads is None:
            threads = min(8, os.cpu_count() or 1)
        self._threads = require_count("threads", threads, at_most=1024)
        self._unsafe_seed = unsafe_noise_seed
        self._calls = 0

    @property
    def unsafe(self) -> bool:
        """Whether the noise comes from a known seed, so that no privacy may be claimed."""
        return self._unsafe_seed is not None

    def add_(self, value: dict[str, Tensor], noise_std: float) -> None:
        """Add N(0, ``noise_std``²) to every coordinate of ``value``, in place. Once per step.

        Args:
            value: `ClippedSum.value`: contiguous float32 or float64 tensors, on any device. A
                narrower dtype is refused: noise rounded to bfloat16 has neither its variance nor
                its support. Values are left on a grid of at most 2^-20 ``noise_std``.
            noise_std: the absolute standard deviation (noise multiplier times l2_clip_norm), in
                [1e-30, 1e30].

        Raises:
            UseError: before anything has changed.
        """
        if not _LEAST_STD <= noise_std <= _MOST_STD:
            raise UseError(
                f"noise_std must be finite and in [{_LEAST_STD:g}, {_MOST_STD:g}], got "
                f"{noise_std!r}; without noise there is no privacy"
            )
        for name, tensor in value.items():
            if tensor.dtype not in (torch.float32, torch.float64):
                raise UseError(
                    f"noise is added in float32 or float64 only, {name} is {tensor.dtype}",
                    hint="add noise to ClippedSum.value, then round to the parameter's dtype",
                )
            if not tensor.is_contiguous():
                raise UseError(f"{name} is not contiguous, so noise cannot be added in place")
        call, self._calls = self._calls, self._calls + 1
        # A power of two: scaling by it is exact.
        grid = 2.0 ** (math.floor(math.log2(noise_std)) - _GRID_BITS)
        largest = max((tensor.numel() for tensor in value.values()), default=0)
        buffer = np.empty(min(_SEGMENT, largest), dtype=np.float64)
        block = 0
        with torch.no_grad(), ThreadPoolExecutor(self._threads) as pool:
            for tensor in value.values():
                flat = tensor.view(-1)
                for begin in range(0, flat.numel(), _SEGMENT):
                    part = flat[begin : begin + _SEGMENT]
                    noise = buffer[: part.numel()]
                    block = self._fill(pool, noise, call=call, first_block=block)
                    # float32 parts are noised in float64 too, and rounded once, on the grid.
                    noisy = part.double().add_(
                        torch.from_numpy(noise).to(part.device), alpha=float(noise_std)
                    )
                    part.copy_(noisy.mul_(1 / grid).round_().mul_(grid))

    def _fill(
        self,
        pool: ThreadPoolExecutor,
        noise: NDArray[np.float64],
        *,
        call: int,
        first_block: int,
    ) -> int:
        """Fill ``noise`` with N(0, 1), block by block; the number of the next block."""
        pieces = [noise[begin : begin + _BLOCK] for begin in range(0, noise.size, _BLOCK)]

        def fill(number: int) -> None:
            self._generator(call, first_block + number).standard_normal(out=pieces[number])

        if len(pieces) == 1:
            fill(0)
        else:
            list(pool.map(fill, range(len(pieces))))
        return first_block + len(pieces)

    def _generator(self, call: int, block: int) -> np.random.Generator:
        if self._unsafe_seed is None:
            seed = np.random.SeedSequence(secrets.randbits(256), pool_size=8)
        else:
            seed = np.random.SeedSequence(self._unsafe_seed, spawn_key=(call, block), pool_size=8)
        return np.random.Generator(np.random.PCG64DXSM(seed))
