"""Invariant 5: no release tells the clean sum by a lattice that its noise lies on.

The attack of `benchmarks.gpu.lattice` counts float32 values per cell of the public grid. Its gain
must stay within 4 standard errors of 0 for every way in which noise is drawn; seeds are fixed, so
that the outcome is. Noise in float32 gains dozens of standard errors. Several processes:
`tests/training/test_distributed.py`; a silo: `tests/federated/test_silo.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import userdp
from benchmarks.gpu.lattice import STDS, Gain, candidates, float32_release, grid_of, lattice_gain
from benchmarks.gpu.noise import DeviceNoise
from userdp.gradients import NoiseSource
from userdp.gradients.noise import noisy_count

COUNT = 200_000
ENOUGH = 4.0
Floats = NDArray[np.float64]

WAYS = pytest.mark.parametrize("kind", [NoiseSource, DeviceNoise], ids=["host", "device"])


def gain_of(release: Floats, std: float, truth: Floats, other: Floats) -> Gain:
    assert np.array_equal(release / grid_of(std), np.rint(release / grid_of(std)))
    return lattice_gain(release, truth=truth, other=other, std=std)


def noised(std: float, kind: type[NoiseSource], *, from_moved: bool = False) -> Gain:
    """The gain from one release of a noise source; from either candidate."""
    truth, other = candidates(COUNT)
    if from_moved:
        truth, other = other, truth
    value = {"w": torch.from_numpy(truth.copy())}
    kind(unsafe_noise_seed=3).add_(value, std)
    return gain_of(value["w"].numpy(), std, truth, other)


@WAYS
@pytest.mark.parametrize("std", STDS)
@pytest.mark.parametrize("from_moved", [False, True], ids=["from 0", "from elsewhere"])
@pytest.mark.pitfall(number=26)
def test_invariant_5_a_release_tells_nothing_by_its_lattice(std, kind, from_moved):
    assert abs(noised(std, kind, from_moved=from_moved).errors) < ENOUGH


@pytest.mark.parametrize("std", STDS)
@pytest.mark.pitfall(number=32)
def test_invariant_5_twin_float32_noise_tells_the_clean_sum(std: float) -> None:
    truth, other = candidates(COUNT)
    gain = gain_of(float32_release(truth, std, seed=3), std, truth, other)
    assert gain.errors > 3 * ENOUGH
    assert gain.nats > 400  # where a Gaussian allows (C/σ)²/2, at most 1


def test_invariant_5_a_released_count_has_the_noise_of_a_source_and_no_other() -> None:
    """So what is found above of a source's releases holds for counts, number by number."""
    std, norms = 13.37, torch.zeros(7)
    source, same = (NoiseSource(unsafe_noise_seed=3) for _ in range(2))
    found, expected = [], []
    for _ in range(200):
        found.append(noisy_count(norms, l2_clip_norm=1.0, count_noise_std=std, noise=source))
        value = {"anything": torch.tensor([3.5], dtype=torch.float64)}
        same.add_(value, std)
        expected.append(float(value["anything"]))
    assert found == expected
    assert len(set(found)) == len(found)


def test_invariant_5_gaussian_noise_is_drawn_in_one_module_only() -> None:
    """Queries draw theirs by OpenDP, over whole numbers, where there is no lattice to see."""
    root = Path(userdp.__file__).parent
    drawing = re.compile(r"\b(standard_normal|randn(_like)?|(log)?normal(_|variate)?|gauss)\(")
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if drawing.search(path.read_text(encoding="utf-8"))
    }
    assert found == {"noise/gaussian.py"}
    assert drawing.search("noise = torch.randn(3)")  # twin: this is what a second way looks like
