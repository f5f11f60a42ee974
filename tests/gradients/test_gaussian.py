"""The ends of the samplers of standard Gaussian draws: where they are, and the law up to there.

The law of what is released, and the two thresholds of these tests, are `test_noise`'s.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from tests.speed import fast_then_slow
from userdp.gradients.noise import draw_on_device
from userdp.noise import gaussian
from userdp.noise.gaussian import TAIL_BITS, draw_on_host, redraw_far

ACCEPT, REJECT = 1e-3, 1e-9
END = math.sqrt(2 * TAIL_BITS * math.log(2))
Floats = np.ndarray[Any, np.dtype[np.float64]]


def device_draws(seed: int, count: int) -> Floats:
    drawn: Floats = draw_on_device(torch.Generator().manual_seed(seed), count).numpy()
    return drawn


def words(monkeypatch: pytest.MonkeyPatch, filled: Callable[[int, Any], Any]) -> None:
    """Make the integers of a device sampler what ``filled`` makes of the k-th call's tensor."""
    honest, calls = torch.Tensor.random_, iter(range(100))

    def random_(self: torch.Tensor, *, generator: torch.Generator) -> torch.Tensor:
        found: torch.Tensor = filled(next(calls), honest(self, generator=generator))
        return found

    monkeypatch.setattr(torch.Tensor, "random_", random_)


def test_the_device_samplers_end_is_the_one_that_is_priced(monkeypatch: pytest.MonkeyPatch) -> None:
    """All bits zero are its largest value; no exact Gaussian's tail there is above 2^-190."""
    words(monkeypatch, lambda call, word: word.zero_())
    assert device_draws(1, 2)[0] == pytest.approx(END, rel=1e-14)
    assert 2 * stats.norm.sf(END) < 2.0**-TAIL_BITS
    # twin: the uniforms of 53 bits behind torch's own float64 numbers on CUDA
    assert 2 * stats.norm.sf(math.sqrt(2 * 53 * math.log(2))) > 2.0**-TAIL_BITS


@pytest.mark.parametrize("zeros", [1, 2])
def test_the_device_samplers_tail_goes_on_word_after_word(monkeypatch, zeros):
    """Given that the leading words are 0, the rest of the radius has the law it should have.

    -log U is exponential, and given U < 2^-63k it is that plus 63k log 2.
    """
    words(monkeypatch, lambda call, word: word.zero_() if call in [0, 2][:zeros] else word)
    radius = np.hypot(*device_draws(3, 2 * 20_000).reshape(-1, 2).T)
    assert stats.kstest(radius**2 / 2 - zeros * 63 * math.log(2), "expon").pvalue > ACCEPT
    assert len(np.unique(radius)) > 0.99 * len(radius)


@pytest.mark.parametrize("beyond", fast_then_slow([0.5, 1.0, 2.5]))
def test_redrawing_far_values_leaves_their_law(beyond: float) -> None:
    values = np.random.default_rng(5).standard_normal(50_000)
    before = values.copy()
    redraw_far(np.random.default_rng(6), values, beyond=beyond)
    far = np.abs(before) > beyond
    assert (values[~far] == before[~far]).all()
    assert (values[far] != before[far]).all()
    assert (np.sign(values) == np.sign(before)).all()
    assert (np.abs(values[far]) > beyond).all()
    assert stats.kstest(values, "norm").pvalue > ACCEPT


class Accepting(np.random.Generator):
    """Accepts every far value."""

    def random(self) -> float:  # type: ignore[override]
        return 0.0


def test_twin_a_tail_without_its_acceptance_step_is_rejected() -> None:
    values = np.random.default_rng(5).standard_normal(50_000)
    redraw_far(Accepting(np.random.PCG64(6)), values, beyond=1.0)
    assert stats.kstest(values, "norm").pvalue < REJECT


class Far(Accepting):
    """Draws the given numbers, and words of zeros where they are redrawn."""

    drawn = (0.5, -6.5, 6.0, 12.2)

    def standard_normal(self, *, out: Floats) -> None:  # type: ignore[override]
        out[:] = self.drawn

    def integers(self, high: int, *, size: int) -> Any:  # type: ignore[override]
        return np.zeros(size, dtype=np.int64)


def test_invariant_5_draws_on_the_host_beyond_six_deviations_are_redrawn() -> None:
    """NumPy's own tail, of 53-bit uniforms, is not what is released there."""
    found = np.empty(4)
    draw_on_host(Far(np.random.PCG64(6)), found)
    end = math.sqrt(36 + 2 * TAIL_BITS * math.log(2))
    assert found == pytest.approx([0.5, -end, 6.0, end], rel=1e-14)
    assert gaussian._FAR == 6.0
    assert 2 * stats.norm.sf(end) < 2.0**-TAIL_BITS
