"""The noise that is drawn on the device: how fast, and whether it is what the claim takes it for.

Over 350 M numbers: seconds. Over 1e6 numbers, at three deviations that are no powers of two, in
``rows``: the lattice attack (`benchmarks.gpu.lattice`) in standard errors, the variance over what
it should be, the p-value of a Kolmogorov-Smirnov test. ``word_bits``: how many of the 63 bits of
the device's random integers are a fair coin within 6 standard errors; the sampler counts on all.
On the same device float32 noise is attacked too: ``float32_errors`` shows that the attack sees it.
"""

from __future__ import annotations

import math
import statistics
import time

import numpy as np
import torch
from scipy import stats

from benchmarks.gpu.lattice import STDS, candidates, grid_of, lattice_gain
from benchmarks.gpu.setting import Result, Setting
from benchmarks.gpu.timing import seconds
from userdp.gradients import NoiseSource
from userdp.noise.gaussian import NoiseSampler

MOST_ERRORS = 5.0
"""A right sampler's three attacks pass this with probability 2e-6."""


def noise(setting: Setting, deadline: float) -> Result:
    found = _speed(setting)
    found["word_bits"] = _fair_bits(setting)
    rows: list[Result] = []
    skipped = []
    for std in STDS:
        if rows and time.monotonic() > deadline:
            skipped.append(f"deviation {std}")
            continue
        rows.append(_row(std, setting))
    passed = found["word_bits"] == 63 and all(
        abs(row["lattice_errors"]) < MOST_ERRORS and row["p_value"] > 1e-6 for row in rows
    )
    return {**found, "rows": rows, "skipped": skipped, "passed": passed}


class DeviceNoise(NoiseSource):
    """Draws as an accelerator does, wherever the sum lies."""

    def sampler_on(self, device: torch.device) -> NoiseSampler:
        return NoiseSampler.DEVICE


def _source(setting: Setting) -> NoiseSource:
    """The device's sampler; over tensors on a CPU it is for tests alone."""
    if setting.on_gpu:
        return NoiseSource()
    return DeviceNoise(unsafe_noise_seed=3)


def _speed(setting: Setting) -> Result:
    count = 10**5 if setting.tiny else 350 * 10**6
    value = {"w": torch.zeros(count, dtype=torch.float64, device=setting.device)}
    source = _source(setting)
    assert source.sampler_on(value["w"].device) is NoiseSampler.DEVICE
    took = [seconds(lambda: source.add_(value, 1.0), setting) for _ in range(3)]
    return {"numbers": count, "seconds": statistics.median(took)}


def _fair_bits(setting: Setting) -> int:
    count = 10**6
    generator = torch.Generator(device=setting.device).manual_seed(1)
    word = torch.empty(count, dtype=torch.int64, device=setting.device)
    word.random_(generator=generator)
    if int(word.min()) < 0:
        return 0
    shares = [float(((word >> bit) & 1).double().mean()) for bit in range(63)]
    return sum(abs(share - 0.5) < 3 / math.sqrt(count) for share in shares)


def _row(std: float, setting: Setting) -> Result:
    count = 10**5 if setting.tiny else 10**6
    truth, other = candidates(count)
    value = {"w": torch.from_numpy(truth.copy()).to(setting.device)}
    _source(setting).add_(value, std)
    release = value["w"].cpu().numpy()
    single = torch.randn(
        count,
        generator=torch.Generator(device=setting.device).manual_seed(2),
        device=setting.device,
        dtype=torch.float32,
    )
    grid = grid_of(std)
    narrow = np.rint((truth + std * single.double().cpu().numpy()) / grid) * grid
    gain, twin = (
        lattice_gain(seen, truth=truth, other=other, std=std) for seen in (release, narrow)
    )
    return {
        "deviation": std,
        "lattice_errors": gain.errors,
        "lattice_nats": gain.nats,
        "float32_errors": twin.errors,
        "float32_nats": twin.nats,
        "variance": float(np.mean(release**2)) / std**2,
        "p_value": float(stats.kstest(release / std, "norm").pvalue),
    }
