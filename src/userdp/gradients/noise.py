r"""Gaussian noise: once per logical step, freshly seeded by the operating system, block by block.

Each number's noise is the sum of two independent float64 draws over √2 (Holohan & Braghin 2021), by
`userdp.gradients.gaussian`. **On a CPU** each of the two draws of a block of 2^18 numbers has a
generator of its own (NumPy's PCG64DXSM) with 256 fresh bits of seed, on several threads. **On a
CUDA device** each of the two draws of a block of 2^24 numbers is made there by a generator of its
own (`torch.Generator`, a Philox counter) with 64 fresh bits of seed: as many as that interface
takes. No state of `NoiseSource` outlives a call: nothing to checkpoint, leak, replay after a crash,
or share between forked processes. The source of a law with memory has a state
(`userdp.noise.NoiseLaw`), which training writes to disk before a step is released.

**What the seeds are worth.** Neither generator is cryptographic; only the seeds are. Whoever knows
a block's clean sum could look for its two seeds in the noisy one. On an accelerator that takes
2^64 trials and as much memory (all values of one draw, looked up by what the other leaves), or
2^128 trials without; on a CPU 2^256 and more, or a weakness of PCG64DXSM. It would tell that
block's noise and nothing of any other: no one seed covers a release. Against an adversary of
bounded effort the noise is as good as random as far as is known; information-theoretically no
seeded noise is. Who needs 256 bits on an accelerator passes ``on_device=False``: the noise is then
drawn on the CPU and copied. torch's own CPU generator keeps 32 bits of a seed, so
``on_device=True`` over tensors on a CPU is refused outside tests.

**Floating point** (Mironov 2012, "On significance of the least significant bits"; Haney et al.
2022; Holohan & Braghin 2021). A Gaussian sampled in floating point hits only some of the
representable numbers, and which sums can occur depends on the data. Noise in float32, for one, hits
a few values in each cell of the grid below, now more and now fewer, and counting them tells the
clean sum from a single release. What is done here: draws, scaling and sum are float64, and the
result is rounded last, once, to multiples of a public power of two, at most :math:`2^{-20}` times
the noise's standard deviation.

*Proven*: every data set's output lies on the same grid (a float32 part that the grid is too fine
for is rounded after that, which is post-processing); the two ends, and what they add to δ
(`userdp.noise.gaussian`). *Measured*: the attack that counts a lattice's values per cell, which
gains thousands of nats from float32 noise, gains nothing from this one, of which a cell holds 2^29
values and more (`tests/gradients/test_lattice.py`). *Assumed*: that the probabilities of the cells
within the ends are a Gaussian's. Adding two draws is what makes a difference hard to use: each
smears the lattice of the other. The assumption is
`userdp.noise.gaussian.FLOATING_POINT_ASSUMPTION`, of grade "theoretical": no attack on this
construction is known to us, and no proof excludes one. Timing is not considered.
"""

from __future__ import annotations

import functools
import math
import os
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from userdp.errors import UseError
from userdp.gradients.gaussian import draw_on_device, draw_on_host
from userdp.noise import Gaussian, NoiseLaw
from userdp.noise.gaussian import DRAWS, MOST_COORDINATES, NoiseSampler
from userdp.vocabulary import require_count

_BLOCK = 1 << 18
_DEVICE_BLOCK = 1 << 24
_CHUNK = 1 << 15
_GRID_BITS = 20
_LEAST_STD, _MOST_STD = 1e-30, 1e30


class Noise(Protocol):
    """What adds a step's noise: the source of a law, or that of several processes."""

    @property
    def unsafe(self) -> bool:
        """Whether the noise comes from a known seed, so that no privacy may be claimed."""
        ...

    def sampler_on(self, device: torch.device) -> NoiseSampler:
        """What draws the noise of a sum that lies on ``device``, for the ledger."""
        ...

    def add_(self, value: dict[str, Tensor], noise_std: float) -> None:
        """Add noise of this standard deviation in place, once per step; see `NoiseSource.add_`."""
        ...

    def state(self) -> dict[str, Tensor]:
        """What the noise of later steps needs of earlier ones; empty where that is nothing.

        It is secret: whoever holds it may know the noise of steps that were released.
        """
        ...

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave, of the last step whose noise may have been released."""
        ...


class NoiseSource:
    """Adds Gaussian noise to a sum; every call draws new noise.

    Guarantee: one call adds independent N(0, noise_std²) to every coordinate (up to the distance
    and the assumption of `userdp.noise.gaussian`), never the same noise twice: each draw of each
    block is seeded afresh by the operating system.

    Args:
        unsafe_noise_seed: FOR TESTS ONLY: noise that anybody who knows the seed can subtract. Two
            sources with one seed repeat each other, so a resumed run must not use the same seed.
        threads: most threads to draw with; None takes up to 8. The result does not depend on it.
        on_device: where noise is drawn: True on the tensor's own device, False on the CPU. None: on
            CUDA devices, and on the CPU for all others.

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

    def sampler_on(self, device: torch.device) -> NoiseSampler:
        """What draws the noise of a sum that lies on ``device``, for the ledger."""
        if self._on_device is None:
            return usual_sampler(device)
        return NoiseSampler.DEVICE if self._on_device else NoiseSampler.HOST

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
            if self._on_device and tensor.device.type == "cpu" and not self.unsafe:
                raise UseError(
                    f"{name} lies on a CPU, where torch's generator keeps 32 bits of its seed: "
                    "its noise could be guessed",
                    hint="leave on_device out; NumPy then draws the noise",
                )
        require_priced(sum(tensor.numel() for tensor in value.values()))
        call, self._calls = self._calls, self._calls + 1
        # The greatest power of two that is at most noise_std (a logarithm may round up to it), over
        # 2^20; scaling by a power of two is exact.
        grid = 2.0 ** (math.frexp(noise_std)[1] - 1 - _GRID_BITS)
        block = 0
        with torch.no_grad(), ThreadPoolExecutor(self._threads) as pool:
            for tensor in value.values():
                flat = tensor.view(-1)
                if self.sampler_on(tensor.device) is NoiseSampler.DEVICE:
                    block += self._add_on_device(flat, noise_std, grid, call=call, first=block)
                elif flat.device.type == "cpu" and flat.dtype == torch.float64:
                    block += self._add(pool, flat.numpy(), noise_std, grid, call=call, first=block)
                else:
                    # float32 parts are noised and rounded in float64 too; that a part then cannot
                    # hold all of it is post-processing.
                    wide = flat.to("cpu", torch.float64)
                    block += self._add(pool, wide.numpy(), noise_std, grid, call=call, first=block)
                    flat.copy_(wide)

    def state(self) -> dict[str, Tensor]:
        """Nothing: every draw is new. In tests with a known seed, how many calls there were."""
        return {"calls": torch.tensor(self._calls)} if self.unsafe else {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """In tests with a known seed: go on behind the calls that there were."""
        self._calls = int(state.get("calls", torch.tensor(0)))

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
        blocks = [flat[begin : begin + _BLOCK] for begin in range(0, flat.size, _BLOCK)]
        scale = noise_std / math.sqrt(DRAWS)

        def add(number: int) -> None:
            one, other = (
                np.random.Generator(np.random.PCG64DXSM(self._seed(call, first + number, draw)))
                for draw in range(DRAWS)
            )
            block = blocks[number]
            room = np.empty((DRAWS, min(_CHUNK, block.size)), dtype=np.float64)
            for begin in range(0, block.size, _CHUNK):  # chunks stay in the cache
                part = block[begin : begin + _CHUNK]
                noise, second = room[0, : part.size], room[1, : part.size]
                draw_on_host(one, noise)
                draw_on_host(other, second)
                noise += second
                noise *= scale
                part += noise
                part *= 1 / grid
                np.rint(part, out=part)
                part *= grid

        if len(blocks) == 1:
            add(0)
        else:
            list(pool.map(add, range(len(blocks))))
        return len(blocks)

    def _add_on_device(
        self, flat: Tensor, noise_std: float, grid: float, *, call: int, first: int
    ) -> int:
        """Noise ``flat`` where it lies, by the same arithmetic as `_add`; how many blocks."""
        starts = range(0, flat.numel(), _DEVICE_BLOCK)
        for number, begin in enumerate(starts):
            block = flat[begin : begin + _DEVICE_BLOCK]
            noise: Tensor | None = None
            for draw in range(DRAWS):
                seed = self._seed(call, first + number, draw).generate_state(1, np.uint64)[0]
                generator = torch.Generator(device=flat.device).manual_seed(int(seed))
                drawn = draw_on_device(generator, block.numel())
                noise = drawn if noise is None else noise.add_(drawn)
            assert noise is not None
            # In place where it can be: memory is what takes the time.
            noisy = block.double().add_(noise, alpha=noise_std / math.sqrt(DRAWS))
            noisy.mul_(1 / grid).round_().mul_(grid)
            if noisy is not block:
                block.copy_(noisy)
        return len(starts)

    def _seed(self, call: int, block: int, draw: int) -> np.random.SeedSequence:
        """256 fresh bits for each draw of a block; or, in tests, what the known seed says."""
        if self._unsafe_seed is None:
            return np.random.SeedSequence(secrets.randbits(256), pool_size=8)
        return np.random.SeedSequence(self._unsafe_seed, spawn_key=(call, block, draw), pool_size=8)


@functools.singledispatch
def source_of(law: NoiseLaw, *, unsafe_noise_seed: int | None = None) -> Noise:
    """What draws the noise of this law. A law's own file registers its source here.

    Args:
        law: of a plan.
        unsafe_noise_seed: FOR TESTS ONLY, see `NoiseSource`.

    Raises:
        UseError: no source is registered for laws of this kind.
    """
    raise UseError(
        f"there is no source of noise of kind {law.kind!r}",
        hint="register one with userdp.gradients.noise.source_of.register",
    )


@source_of.register
def _(law: Gaussian, *, unsafe_noise_seed: int | None = None) -> Noise:
    return NoiseSource(unsafe_noise_seed=unsafe_noise_seed)


def usual_sampler(device: torch.device) -> NoiseSampler:
    """What draws the noise of a sum that lies on ``device``, unless a source is told otherwise."""
    return NoiseSampler.DEVICE if device.type == "cuda" else NoiseSampler.HOST


def require_priced(coordinates: int) -> None:
    """`UseError` if a step would noise more numbers than the price of its noise counts.

    One place is kept for the count of adaptive clipping, which the same step releases.
    """
    if not coordinates < MOST_COORDINATES:
        raise UseError(
            f"a step would noise {coordinates} numbers; plans are priced for fewer than "
            f"{MOST_COORDINATES}, so its claim would not hold"
        )
