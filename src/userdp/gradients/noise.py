r"""Gaussian noise: once per logical step, freshly seeded by the operating system, block by block.

**On the CPU** each block of 2^18 numbers is drawn in float64 by a generator of its own (NumPy's
PCG64DXSM) with 256 fresh bits of seed, on several threads. **On a CUDA device** each block of
2^22 numbers is drawn there in float32 (`torch.Generator`, a Philox counter) with 64 fresh bits of
seed: as many as that interface takes. No state outlives a call: nothing to checkpoint,
leak, replay after a crash, or share between forked processes.

**What the seeds are worth.** Neither generator is cryptographic; only the seeds are. Whoever knows
a block's clean sum could recover its seed from the noisy one with 2^64 trials at most on an
accelerator (on a CPU with a weakness of PCG64DXSM, or 2^256 trials), and would then know that
block's noise and nothing of any other: no one seed covers a release. Against an adversary of
bounded effort that does not reach 2^64 trials per block the noise is as good as random as far as
is known; information-theoretically no seeded noise is. Who needs 256 bits on an accelerator passes
``on_device=False``: the noise is then drawn on the CPU and copied.

**Float32 on the device** reaches about 6.7 standard deviations and no further (a Box-Muller
transform of 32-bit numbers), which one in 5e10 numbers of an exact Gaussian would pass. Sum and
noise are still added, scaled and rounded in float64.

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
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from userdp.errors import UseError
from userdp.guarantees import require_count

FLOATING_POINT_ASSUMPTION = (
    "Noise is a floating-point Gaussian (float64 on a CPU, float32 on an accelerator) from seeded "
    "generators, rounded to a public grid of 2^-20 standard deviations; that its probabilities are "
    "those of an exact Gaussian is assumed, not proven (grade: theoretical)."
)

_BLOCK = 1 << 18
_DEVICE_BLOCK = 1 << 22
_CHUNK = 1 << 15
_GRID_BITS = 20
_LEAST_STD, _MOST_STD = 1e-30, 1e30


class Noise(Protocol):
    """What adds a step's noise: a `NoiseSource`, or several processes' one."""

    @property
    def unsafe(self) -> bool:
        """Whether the noise comes from a known seed, so that no privacy may be claimed."""
        ...

    def add_(self, value: dict[str, Tensor], noise_std: float) -> None:
        """See `NoiseSource.add_`."""
        ...


class NoiseSource:
    """Adds Gaussian noise to a sum; every call draws new noise.

    Guarantee: one call adds independent N(0, noise_std²) to every coordinate (up to the
    floating-point assumption in the module's docstring), never the same noise twice: each block is
    seeded afresh by the operating system.

    Args:
        unsafe_noise_seed: FOR TESTS ONLY: noise that anybody who knows the seed can subtract. Two
            sources with one seed repeat each other, so a resumed run must not use the same seed.
        threads: most threads to draw with; None takes up to 8. The result does not depend on it.
        on_device: where noise is drawn: True on the tensor's own device in float32, False on the
            CPU in float64. None: on CUDA devices, and on the CPU for all others. (True for tensors
            on a CPU is for tests: torch's float32 numbers there end at 5.8 deviations.)

    Raises:
        UseError: a seed or a number of threads out of range.

    >>> value = {"w": torch.zeros(3, dtype=torch.float64)}
    >>> NoiseSource().add_(value, noise_std=1.0)
    >>> bool((value["w"] != 0).all())
    True
    """

    def __init__(
        self,
        *,
        unsafe_noise_seed: int | None = None,
        threads: int | None = None,
        on_device: bool | None = None,
    ) -> None:
        if unsafe_noise_seed is not None:
            require_count("unsafe_noise_seed", unsafe_noise_seed, at_least=0, at_most=2**256 - 1)
        if threads is None:
            threads = min(8, os.cpu_count() or 1)
        self._threads = require_count("threads", threads, at_most=1024)
        self._unsafe_seed = unsafe_noise_seed
        self._on_device = on_device
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
        block = 0
        with torch.no_grad(), ThreadPoolExecutor(self._threads) as pool:
            for tensor in value.values():
                flat = tensor.view(-1)
                if self._draws_on(tensor.device):
                    block += self._add_on_device(flat, noise_std, grid, call=call, first=block)
                elif flat.device.type == "cpu" and flat.dtype == torch.float64:
                    block += self._add(pool, flat.numpy(), noise_std, grid, call=call, first=block)
                else:
                    # float32 parts are noised in float64 too, and rounded once, on the grid.
                    wide = flat.to("cpu", torch.float64)
                    block += self._add(pool, wide.numpy(), noise_std, grid, call=call, first=block)
                    flat.copy_(wide)

    def _draws_on(self, device: torch.device) -> bool:
        return device.type == "cuda" if self._on_device is None else self._on_device

    def _add(
        self,
        pool: ThreadPoolExecutor,
        flat: NDArray[np.float64],
        noise_std: float,
        grid: float,
        *,
        call: int,
        first: int,
    ) -> int:
        """Noise ``flat`` in place, block by block on all threads; how many blocks there were."""
        pieces = [flat[begin : begin + _BLOCK] for begin in range(0, flat.size, _BLOCK)]

        def add(number: int) -> None:
            generator = np.random.Generator(np.random.PCG64DXSM(self._seed(call, first + number)))
            piece = pieces[number]
            buffer = np.empty(min(_CHUNK, piece.size), dtype=np.float64)
            for begin in range(0, piece.size, _CHUNK):  # chunks stay in the cache
                part = piece[begin : begin + _CHUNK]
                noise = buffer[: part.size]
                generator.standard_normal(out=noise)
                noise *= noise_std
                part += noise
                part *= 1 / grid
                np.rint(part, out=part)
                part *= grid

        if len(pieces) == 1:
            add(0)
        else:
            list(pool.map(add, range(len(pieces))))
        return len(pieces)

    def _add_on_device(
        self, flat: Tensor, noise_std: float, grid: float, *, call: int, first: int
    ) -> int:
        """Noise ``flat`` where it lies, in float32 and added in float64; how many blocks."""
        generator = torch.Generator(device=flat.device)
        starts = range(0, flat.numel(), _DEVICE_BLOCK)
        for number, begin in enumerate(starts):
            piece = flat[begin : begin + _DEVICE_BLOCK]
            seed = int(self._seed(call, first + number).generate_state(1, np.uint64)[0])
            generator.manual_seed(seed)
            noise = torch.randn(
                piece.shape, generator=generator, device=flat.device, dtype=torch.float32
            )
            noisy = piece.double().add_(noise, alpha=noise_std)
            piece.copy_(noisy.mul_(1 / grid).round_().mul_(grid))
        return len(starts)

    def _seed(self, call: int, block: int) -> np.random.SeedSequence:
        """256 fresh bits for each block; or, in tests, what the known seed says."""
        if self._unsafe_seed is None:
            return np.random.SeedSequence(secrets.randbits(256), pool_size=8)
        return np.random.SeedSequence(self._unsafe_seed, spawn_key=(call, block), pool_size=8)
