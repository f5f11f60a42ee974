"""Invariant 5, noise: exact variance, once per logical step, never twice the same.

The thresholds were fixed before any of these tests had run: a Kolmogorov-Smirnov test of 20,000
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
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor, nn

from benchmarks.gpu.noise import DeviceNoise
from tests.gradients.tiny import ragged, tiny
from tests.speed import fast_then_slow
from userdp.core.errors import UseError
from userdp.gradients import NoiseSource, Units, causal_lm_loss, clipped_sum
from userdp.gradients import noise as noise_module
from userdp.noise.gaussian import DRAWS, FLOATING_POINT_ASSUMPTION, NoiseSampler

ACCEPT, REJECT = 1e-3, 1e-9
STD = 3.7


def zeros(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
    return {str(k): torch.zeros(shape, dtype=dtype) for k, shape in enumerate(shapes)}


def p_value(noise: Tensor, std: float = STD) -> float:
    return float(stats.kstest(noise.double().flatten().numpy() / std, "norm").pvalue)


WAYS = pytest.mark.parametrize("kind", [NoiseSource, DeviceNoise], ids=["host", "device"])
"""Noise drawn on an accelerator: the same code on a CPU's own torch generator."""


def drawn(
    kind: type[NoiseSource], *, std: float = STD, seed: int = 1, **how: torch.dtype
) -> Tensor:
    value = zeros((100, 200), **how)
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
@pytest.mark.parametrize("wrong", [0.9, 1.1, math.sqrt(2), math.sqrt(0.5)])
def test_invariant_5_twin_noise_of_another_deviation_is_caught(kind, wrong):
    """0.9 σ; and √2 σ: what noise per micro-batch, per process or added twice comes to."""
    assert p_value(drawn(kind, std=STD * wrong)) < REJECT


def test_invariant_5_noise_of_the_operating_system_is_gaussian_too() -> None:
    value = zeros((100, 200))
    NoiseSource().add_(value, STD)
    assert p_value(value["0"]) > REJECT


def noise_of_a_step(model: nn.Module, units: Units, *, micro_batch: int, calls: int = 1) -> Tensor:
    """Noisy sum minus clean sum of one logical step; ``calls`` other than 1 is the broken twin."""
    clean, noisy = (
        clipped_sum(model, causal_lm_loss, units, l2_clip_norm=1.0, micro_batch=micro_batch)
        for _ in range(2)
    )
    source = NoiseSource(unsafe_noise_seed=11)
    for _ in range(calls):
        source.add_(noisy.value, STD)
    return torch.cat([(noisy.value[n] - clean.value[n]).flatten() for n in clean.value])


@pytest.mark.parametrize("dtype", fast_then_slow([torch.float32, torch.bfloat16]))
@pytest.mark.parametrize("micro_batch", [1, 2, 32])
def test_invariant_5_the_variance_of_a_step_does_not_depend_on_the_micro_batches(
    micro_batch, dtype
):
    model, units = tiny(dtype=dtype), Units.from_rows(ragged([4, 3]))
    noise = noise_of_a_step(model, units, micro_batch=micro_batch)
    assert p_value(noise) > ACCEPT
    assert noise.dtype == torch.float64


@pytest.mark.pitfall(number=20)
def test_invariant_5_twin_noise_once_per_micro_batch_is_caught() -> None:
    model, units = tiny(), Units.from_rows(ragged([4, 3]))
    assert p_value(noise_of_a_step(model, units, micro_batch=2, calls=2)) < REJECT


def correlated(one: Tensor, two: Tensor) -> bool:
    """Whether two noises of the same size have anything to do with each other (6 deviations)."""
    together = np.corrcoef(one.flatten().numpy(), two.flatten().numpy())[0, 1]
    return abs(float(together)) > 6 / math.sqrt(one.numel())


def noise_repeats(make_source: Callable[[], NoiseSource], source: NoiseSource) -> bool:
    """Whether two steps, over different data, got related noise."""
    noises = []
    for start in (0.0, 5.0):
        value = {"w": torch.full((20_000,), start, dtype=torch.float64)}
        source.add_(value, STD)
        noises.append(value["w"] - start)
        source = make_source()
    return correlated(*noises)


def test_invariant_5_no_two_calls_and_no_two_sources_share_noise() -> None:
    source = NoiseSource()
    assert not noise_repeats(lambda: source, source)
    assert not noise_repeats(NoiseSource, NoiseSource())
    seeded = NoiseSource(unsafe_noise_seed=1)
    assert not noise_repeats(lambda: seeded, seeded)


def test_invariant_5_twin_the_same_noise_for_different_data_is_caught() -> None:
    def restarted() -> NoiseSource:
        return NoiseSource(unsafe_noise_seed=1)

    assert noise_repeats(restarted, restarted())


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


# The two draws of a number are independent.


@WAYS
def test_invariant_5_twin_one_seed_for_both_draws_is_caught(kind, monkeypatch):
    """The same draw added twice, over √2, has twice the variance."""
    seeds = NoiseSource._block_seeds
    monkeypatch.setattr(NoiseSource, "_block_seeds", lambda self: (seeds(self)[0],) * DRAWS)
    noise = drawn(kind)
    assert float(noise.var()) == pytest.approx(2 * STD**2, rel=0.1)
    assert p_value(noise) < REJECT


@WAYS
def test_invariant_5_twin_half_the_variance_is_caught(kind, monkeypatch):
    """One draw over √2: what a forgotten second draw comes to."""
    host, device = noise_module.draw_on_host, noise_module.draw_on_device
    calls = itertools.count()

    def host_once(generator: np.random.Generator, out: NDArray[np.float64]) -> None:
        host(generator, out)
        out *= next(calls) % 2

    def device_once(generator: torch.Generator, count: int) -> Tensor:
        return device(generator, count).mul_(next(calls) % 2)

    monkeypatch.setattr(noise_module, "draw_on_host", host_once)
    monkeypatch.setattr(noise_module, "draw_on_device", device_once)
    noise = drawn(kind)
    assert float(noise.var()) == pytest.approx(STD**2 / 2, rel=0.1)
    assert p_value(noise) < REJECT


@WAYS
def test_invariant_5_no_two_blocks_tensors_or_calls_share_noise_or_a_seed(kind, monkeypatch):
    for name in ("_BLOCK", "_DEVICE_BLOCK"):
        monkeypatch.setattr(noise_module, name, 5_000)
    seeds: list[int] = []
    seed_of = NoiseSource._seed

    def noting(self: NoiseSource) -> np.random.SeedSequence:
        seed = seed_of(self)
        seeds.append(int(seed.generate_state(1, np.uint64)[0]))
        return seed

    monkeypatch.setattr(NoiseSource, "_seed", noting)
    source, blocks = kind(), []
    for _ in range(2):
        value = zeros((5_000, 2), (5_000,), (0, 3))
        source.add_(value, 1.0)
        blocks += [*value["0"].flatten().split(5_000), value["1"]]
    assert len(set(seeds)) == len(seeds) == 8 * DRAWS  # also of the tensor without numbers
    for k, one in enumerate(blocks):
        assert not any(correlated(one, two) for two in blocks[k + 1 :])


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


@pytest.mark.pitfall(number=26)
def test_the_floating_point_assumption_states_its_grade() -> None:
    assert "theoretical" in FLOATING_POINT_ASSUMPTION


@pytest.mark.parametrize("std", [float("nan"), float("inf"), -float("inf"), 0.0, -1.0])
def test_a_deviation_that_is_not_finite_and_positive_is_refused(std: float) -> None:
    value = zeros((3,))
    with pytest.raises(UseError, match="noise_std"):
        NoiseSource().add_(value, std)
    assert not value["0"].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.int64])
@pytest.mark.pitfall(number=20)
def test_noise_in_the_dtype_of_narrow_parameters_is_refused_before_anything_changes(dtype):
    value = {"wide": torch.zeros(3), "narrow": torch.zeros(3, dtype=dtype)}
    with pytest.raises(UseError, match="narrow"):
        NoiseSource().add_(value, 1.0)
    assert not value["wide"].any()


def test_more_numbers_than_a_plan_is_priced_for_are_refused(monkeypatch):
    monkeypatch.setattr(noise_module, "MOST_COORDINATES", 8)
    value = zeros((3,), (4,))
    NoiseSource().add_(value, 1.0)  # one place is left for the count of adaptive clipping
    value["more"] = torch.zeros(1)
    with pytest.raises(UseError, match="priced for"):
        NoiseSource().add_(value, 1.0)
    assert value["more"] == 0
