"""Invariant 5, noise: exact variance, once per logical step, never twice the same.

The thresholds were fixed before any of these tests had run: a Kolmogorov-Smirnov test of 100,000
numbers accepts at p > 1e-3 (the seeds are fixed) and must reject a broken twin at p < 1e-9. Noise
from the operating system, which no seed can fix, is accepted at p > 1e-9.
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from benchmarks.gpu.noise import DeviceNoise
from userdp.core.errors import UseError
from userdp.gradients import NoiseSource
from userdp.gradients import noise as noise_module
from userdp.gradients.noise import COUNT_SENSITIVITY, centred_count
from userdp.noise.gaussian import DRAWS, NoiseSampler

ACCEPT, REJECT = 1e-3, 1e-9
STD = 3.7


def zeros(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    return {str(k): torch.zeros(shape, dtype=dtype) for k, shape in enumerate(shapes)}


def p_value(noise: Tensor) -> float:
    return float(stats.kstest(noise.double().flatten().numpy() / STD, "norm").pvalue)


WAYS = pytest.mark.parametrize("kind", [NoiseSource, DeviceNoise], ids=["host", "device"])
"""Noise drawn on an accelerator: the same code on a CPU's own torch generator."""


def drawn(
    kind: type[NoiseSource], *, std: float = STD, seed: int = 1, **how: torch.dtype
) -> Tensor:
    value = zeros((100, 1000), **how)
    kind(unsafe_noise_seed=seed).add_(value, std)
    return value["0"]


@WAYS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_invariant_5_noise_is_gaussian_with_exactly_the_planned_deviation(kind, seed, dtype):
    noise = drawn(kind, seed=seed, dtype=dtype)
    assert noise.dtype == dtype
    assert p_value(noise) > ACCEPT


@WAYS
@pytest.mark.pitfall(number=20)
@pytest.mark.parametrize("wrong", [0.9, 1.1, math.sqrt(2), math.sqrt(0.5)])
def test_invariant_5_twin_noise_of_another_deviation_is_caught(kind, wrong):
    """√2 σ: noise once per micro-batch or process, or one seed for both draws; √½ σ: one draw."""
    assert p_value(drawn(kind, std=STD * wrong)) < REJECT


def correlated(one: Tensor, two: Tensor) -> bool:
    """Whether two noises of the same size have anything to do with each other (6 deviations)."""
    together = np.corrcoef(one.flatten().numpy(), two.flatten().numpy())[0, 1]
    return abs(float(together)) > 6 / math.sqrt(one.numel())


def shares_noise(make: Callable[[], NoiseSource], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether blocks of a tensor, tensors, or calls (over different data) got related noise."""
    for name in ("_BLOCK", "_DEVICE_BLOCK"):
        monkeypatch.setattr(noise_module, name, 5_000)
    blocks: list[Tensor] = []
    for start in (0.0, 5.0):
        value = {n: v + start for n, v in zeros((5_000, 2), (5_000,), (0, 3)).items()}
        make().add_(value, STD)
        blocks += [*(value["0"] - start).flatten().split(5_000), value["1"] - start]
    return any(correlated(one, two) for one, two in itertools.combinations(blocks, 2))


@WAYS
@pytest.mark.parametrize("seed", [None, 1])
def test_invariant_5_no_two_blocks_tensors_or_calls_share_noise(kind, seed, monkeypatch):
    source = kind() if seed is None else kind(unsafe_noise_seed=seed)
    assert not shares_noise(lambda: source, monkeypatch)


def test_invariant_5_no_two_sources_share_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not shares_noise(NoiseSource, monkeypatch)
    # Broken twin: a source that is made anew from one seed has the same noise for different data.
    assert shares_noise(lambda: NoiseSource(unsafe_noise_seed=1), monkeypatch)


def test_invariant_5_each_draw_of_each_block_is_seeded_by_256_fresh_bits_of_the_operating_system(
    monkeypatch,
):
    asked: list[int] = []

    def randbits(bits: int) -> int:
        asked.append(bits)
        return 12345

    monkeypatch.setattr(secrets, "randbits", randbits)
    one, two = zeros((3,), (1 << 19,)), zeros((3,))
    source = NoiseSource()
    assert asked == []
    source.add_(one, 1.0)
    source.add_(two, 1.0)
    assert asked == [256] * 4 * DRAWS
    assert torch.equal(one["0"], two["0"])  # nothing but those bits decides


def test_noise_is_drawn_on_cuda_devices_and_for_all_others_on_the_cpu() -> None:
    cpu, cuda, other = torch.device("cpu"), torch.device("cuda"), torch.device("mps")
    host, device = NoiseSampler.HOST, NoiseSampler.DEVICE
    assert [NoiseSource().sampler_on(d) for d in (cpu, cuda, other)] == [host, device, host]


@pytest.mark.parametrize("std", [1e-6, 0.75, STD, 1e5])
def test_invariant_5_every_noisy_value_lies_on_one_public_grid_whatever_the_data(std):
    """Mironov 2012: the low-order bits of the sum must not tell which data it came from."""
    grid = 2.0 ** (math.floor(math.log2(std)) - 20)
    assert grid <= std * 2**-20 < 2 * grid
    data = torch.rand(5000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for scale in (0.0, std, 1000 * std):
        value = {"w": data * scale}
        NoiseSource(unsafe_noise_seed=1).add_(value, std)
        multiples = value["w"] / grid
        assert torch.equal(multiples, multiples.round())
    bare = data + std * torch.from_numpy(np.random.default_rng(0).standard_normal(5000))
    assert not torch.equal(bare / grid, (bare / grid).round())  # broken twin: plain addition


NARROW = {
    str(dtype): {"wide": torch.zeros(3), "narrow": torch.zeros(3, dtype=dtype)}
    for dtype in (torch.bfloat16, torch.float16, torch.int64)
}


@pytest.mark.parametrize(
    ("value", "std", "words"),
    [
        *((zeros((3,)), std, "noise_std") for std in (math.nan, math.inf, -math.inf, 0.0, -1.0)),
        *((value, 1.0, "narrow") for value in NARROW.values()),
        (zeros((3,), (6,)), 1.0, "priced for"),
    ],
)
def test_noise_that_no_plan_prices_is_refused_before_anything_changes(
    value, std, words, monkeypatch
):
    """A deviation, a type in which noise would be rounded first, more numbers than are priced."""
    monkeypatch.setattr(noise_module, "MOST_COORDINATES", 8)
    with pytest.raises(UseError, match=words):
        NoiseSource().add_(value, std)
    assert not any(part.any() for part in value.values())
    NoiseSource().add_(zeros((3,), (4,)), 1.0)  # one place is left for the count below


# The count of unclipped units, released where the clip norm adapts.

NORMS = [0.2, 0.9999, 1.0, 1.0001, 50.0, math.nan, math.inf, 0.0]


@pytest.mark.parametrize("held", [1, 3, 5])
@pytest.mark.parametrize("norm", NORMS)
def test_invariant_3_k_drawn_units_of_a_user_move_the_count_by_half_of_k(norm, held):
    others = torch.tensor(NORMS, dtype=torch.float64)
    mine = torch.full((held,), norm, dtype=torch.float64)
    without, whole = (
        centred_count(norms, l2_clip_norm=1.0) for norms in (others, torch.cat([others, mine]))
    )
    assert abs(whole - without) == held * COUNT_SENSITIVITY
    assert centred_count(torch.zeros(0), l2_clip_norm=1.0) == 0
