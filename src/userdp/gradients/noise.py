r"""Gaussian noise: once per logical step, freshly seeded by the operating system, block by block.

Each number's noise is the sum of two independent float64 draws over √2 (Holohan & Braghin 2021).
**On a CPU** each of the two draws of a block of 2^18 numbers has a generator of its own (NumPy's
PCG64DXSM) with 256 fresh bits of seed, on several threads (`noise.gaussian.draw_on_host`). **On a
CUDA device** each of the two draws of a block of 2^24 numbers is made there by a generator of its
own (`torch.Generator`, a Philox counter) with 64 fresh bits of seed: as many as that interface
takes (`draw_on_device`). No state of `NoiseSource` outlives a call: nothing to checkpoint, leak,
replay after a crash, or share between forked processes.

**What the seeds are worth.** Neither generator is cryptographic; only the seeds are. Whoever knows
a block's clean sum could look for its two seeds in the noisy one. On an accelerator that takes
2^64 trials and as much memory (all values of one draw, looked up by what the other leaves), or
2^128 trials without; on a CPU 2^256 and more, or a weakness of PCG64DXSM. It would tell that
block's noise and nothing of any other: no one seed covers a release. Against an adversary of
bounded effort the noise is as good as random as far as is known; information-theoretically no
seeded noise is. (torch's own CPU generator keeps 32 bits of a seed, and is never used.)

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

Source: Marsaglia and Tsang 2000, "The Ziggurat Method"; Marsaglia 1964, "Generating a variable from
the tail of the normal distribution"; Box and Muller 1958.
"""

from __future__ import annotations

import math
import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from userdp.core.errors import UseError
from userdp.core.vocabulary import require_count
from userdp.noise.gaussian import DRAWS, MOST_COORDINATES, SCALE, WORDS, NoiseSampler
from userdp.noise.gaussian import draw_on_host as draw_on_host  # the self-check asks for it here

_BLOCK = 1 << 18
_DEVICE_BLOCK = 1 << 24
_CHUNK = 1 << 15
_GRID_BITS = 20
_LEAST_STD, _MOST_STD = 1e-30, 1e30

_FILLED = 1 << 53  # from here on a word alone fills float64's bits

Seeds = tuple[np.random.SeedSequence, ...]
"""Of the draws of one block."""


class NoiseSource:
    """Adds Gaussian noise to a sum; every call draws new noise.

    Guarantee: one call adds independent N(0, noise_std²) to every coordinate (up to the distance
    and the assumption of `userdp.noise.gaussian`), never the same noise twice: each draw of each
    block is seeded afresh by the operating system.

    Args:
        unsafe_noise_seed: FOR TESTS ONLY: noise that anybody who knows the seed can subtract. Two
            sources with one seed repeat each other, so a resumed run must not use the same seed.

    Raises:
        UseError: a seed out of range.

    >>> value = {"w": torch.zeros(3, dtype=torch.float64)}
    >>> NoiseSource().add_(value, noise_std=1.0)
    >>> bool((value["w"] != 0).all())
    True
    """

    def __init__(self, *, unsafe_noise_seed: int | None = None) -> None:
        if unsafe_noise_seed is not None:
            require_count("unsafe_noise_seed", unsafe_noise_seed, at_least=0, at_most=2**256 - 1)
        self._unsafe_seed = unsafe_noise_seed
        self._seeds = 0

    @property
    def unsafe(self) -> bool:
        """Whether the noise comes from a known seed, so that no privacy may be claimed."""
        return self._unsafe_seed is not None

    def sampler_on(self, device: torch.device) -> NoiseSampler:
        """What draws the noise of a sum that lies on ``device``, for the ledger."""
        return NoiseSampler.DEVICE if device.type == "cuda" else NoiseSampler.HOST

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
        require_priced(sum(tensor.numel() for tensor in value.values()))
        scale = noise_std / math.sqrt(DRAWS)
        # The greatest power of two that is at most noise_std (a logarithm may round up to it), over
        # 2^20; scaling by a power of two is exact.
        grid = 2.0 ** (math.frexp(noise_std)[1] - 1 - _GRID_BITS)
        with torch.no_grad(), ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            for flat in [tensor.view(-1) for tensor in value.values()]:
                if self.sampler_on(flat.device) is NoiseSampler.DEVICE:
                    for block in torch.split(flat, _DEVICE_BLOCK):
                        _add_on_device(block, self._block_seeds(), scale, grid)
                    continue
                # float32 parts are noised and rounded in float64 too; that a part then cannot hold
                # all of it is post-processing.
                wide = flat.to("cpu", torch.float64)
                blocks = [block.numpy() for block in torch.split(wide, _BLOCK)]
                seeds = [self._block_seeds() for _ in blocks]
                list(pool.map(partial(_add_on_host, scale=scale, grid=grid), blocks, seeds))
                if wide is not flat:
                    flat.copy_(wide)

    def _block_seeds(self) -> Seeds:
        return tuple(self._seed() for _ in range(DRAWS))

    def _seed(self) -> np.random.SeedSequence:
        """256 fresh bits for each draw of a block; or, in tests, what the known seed says."""
        if self._unsafe_seed is None:
            return np.random.SeedSequence(secrets.randbits(256), pool_size=8)
        self._seeds += 1
        return np.random.SeedSequence(self._unsafe_seed, spawn_key=(self._seeds,), pool_size=8)


def _add_on_host(block: NDArray[np.float64], seeds: Seeds, scale: float, grid: float) -> None:
    """Noise ``block`` in place, by NumPy's generators."""
    one, other = (np.random.Generator(np.random.PCG64DXSM(seed)) for seed in seeds)
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


def _add_on_device(block: Tensor, seeds: Seeds, scale: float, grid: float) -> None:
    """Noise ``block`` where it lies, by the same arithmetic and torch's generators."""
    draws = []
    for seed in seeds:
        words = seed.generate_state(1, np.uint64)
        generator = torch.Generator(device=block.device).manual_seed(int(words[0]))
        draws.append(draw_on_device(generator, len(block)))
    # In place where it can be: memory is what takes the time.
    noisy = block.double().add_(draws[0].add_(draws[1]), alpha=scale)
    noisy.mul_(1 / grid).round_().mul_(grid)
    if noisy is not block:
        block.copy_(noisy)


def draw_on_device(generator: torch.Generator, count: int) -> Tensor:
    """``count`` standard Gaussian numbers in float64 on the generator's device, at most 16.23.

    By Box and Muller's transform of 63-bit integers, √(-2 log U) (cos φ, sin φ). As U >= 2^-190,
    the radius ends at √(2·190·log 2) = 16.229. The float64 normals that torch draws on CUDA come
    from uniforms of 53 bits and end near 8.6, which over 1e8 coordinates and 1e3 steps an exact
    Gaussian passes with probability 1e-6.

    Works alike on every device that has float64, a CPU included. The host waits for the device
    once. Memory moves more numbers here than arithmetic units do, so each pass over them counts.
    """
    pairs = -(-count // 2)
    device = generator.device
    # `random_` without a range gives an int64 tensor 63 independent bits.
    word = torch.empty(pairs, dtype=torch.int64, device=device).random_(generator=generator)
    uniform = _scaled(word, SCALE).add_(0.5 * SCALE)
    few = (word < _FILLED).nonzero().view(-1)
    if len(few):
        rest = torch.full((len(few),), 0.5, dtype=torch.float64, device=device)
        more = torch.empty(len(few), dtype=torch.int64, device=device)
        for _ in range(WORDS - 1):
            rest.add_(more.random_(generator=generator)).mul_(SCALE)
        uniform[few] = rest.add_(word[few]).mul_(SCALE)
    radius = uniform.log_().mul_(-2.0).sqrt_()
    angle = _scaled(word.random_(generator=generator), 2 * math.pi * SCALE)
    return torch.view_as_real(torch.polar(radius, angle)).view(-1)[:count]


def _scaled(word: Tensor, scale: float) -> Tensor:
    """Words as float64, times ``scale``, in one pass over them."""
    return word.mul(torch.full((), scale, dtype=torch.float64, device=word.device))


def require_priced(coordinates: int) -> None:
    """`UseError` if a step would noise more numbers than the price of its noise counts.

    One place is kept for the count of adaptive clipping, which the same step releases.
    """
    if not coordinates < MOST_COORDINATES:
        raise UseError(
            f"a step would noise {coordinates} numbers; plans are priced for fewer than "
            f"{MOST_COORDINATES}, so its claim would not hold"
        )


COUNT_SENSITIVITY = 0.5
"""How far one unit moves `centred_count`: k drawn units of a user move it by k / 2."""


def centred_count(norms: Tensor, *, l2_clip_norm: float) -> float:
    """The sum over units of b - 1/2, where b is 1 for a norm of at most ``l2_clip_norm``, else 0.

    Guarantee: adding or removing one unit, finite or not, moves it by exactly
    `COUNT_SENSITIVITY`. Centring halves the sensitivity of the count itself.

    Source: Andrew et al. 2021, Section 2.

    >>> centred_count(torch.tensor([0.1, 0.2, 3.0, float("nan")]), l2_clip_norm=1.0)
    0.0
    """
    unclipped = int((norms <= l2_clip_norm).sum())
    return unclipped - COUNT_SENSITIVITY * len(norms)


def noisy_count(
    norms: Tensor, *, l2_clip_norm: float, count_noise_std: float, noise: NoiseSource
) -> float:
    """`centred_count` plus N(0, ``count_noise_std``²): the second half of a step's release.

    Guarantee: together with the sum, accounted for in `userdp.noise.clip_forms`.

    Args:
        norms: (units,); `ClippedSum.norms`.
        l2_clip_norm: the step's.
        count_noise_std: σ_b, in units.
        noise: the run's; fresh for every call.
    """
    count = centred_count(norms, l2_clip_norm=l2_clip_norm)
    value = {"count": torch.tensor([count], dtype=torch.float64)}
    noise.add_(value, count_noise_std)
    return float(value["count"])
