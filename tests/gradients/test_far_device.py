"""Every engine on an accelerator: nothing is left on the host, and the sum is the CPU's."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from tests.gradients.batches import reason_alone
from tests.gradients.far_device import FAR, Accelerator, Far, MixedDevicesError, on_far
from tests.gradients.tiny import ragged, tiny
from tests.speed import fast_then_slow
from userdp.gradients import (
    ENGINES,
    NoiseSource,
    Units,
    causal_lm_loss,
    clipped_sum,
    get_engine,
)


def both(family: str) -> tuple[nn.Module, nn.Module, Units, Units]:
    """A model here and there, and units here and there."""
    model, here = tiny(family), Units.from_rows(ragged([2, 1, 3, 1]))
    model.set_attn_implementation("eager")  # which kernel attends follows the device's name
    far = on_far(copy.deepcopy(model))
    with Accelerator():
        there = here.to(FAR)
        try:
            causal_lm_loss(far, there.input_ids, there.lengths)
        except NotImplementedError:  # seen with transformers 5.17's masks, not with 5.23's
            pytest.skip("this transformers makes tensors where no mode sees them")
    return model, far, here, there


def apart(there, here) -> float:
    assert set(there) == set(here)
    assert all(isinstance(value, Far) for value in there.values())
    return max(float((there[name].near - value).abs().max()) for name, value in here.items())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("family", fast_then_slow(["gpt2-tied", "llama"]))
def test_an_engine_gives_there_what_it_gives_here(engine, family):
    model, far, here, there = both(family)
    oracle = clipped_sum(model.double(), causal_lm_loss, here, l2_clip_norm=0.5)
    with Accelerator():
        found = get_engine(engine)(far, causal_lm_loss, there, l2_clip_norm=0.5)
        assert reason_alone(far, causal_lm_loss, there) is None  # units share passes
    assert apart(found.value, oracle.value) < 2e-3  # of the margins, 0.5 times 1e-3
    torch.testing.assert_close(found.norms, oracle.norms, rtol=1e-4, atol=0)
    torch.testing.assert_close(found.losses, oracle.losses, rtol=1e-5, atol=0)
    assert (found.norms.device.type, found.losses.device.type) == ("cpu", "cpu")


def test_noise_drawn_on_the_host_reaches_the_device():
    here = {"w": torch.zeros(5, dtype=torch.float64)}
    NoiseSource(unsafe_noise_seed=3).add_(here, 1.0)
    with Accelerator():
        there = {"w": torch.zeros(5, dtype=torch.float64, device=FAR)}
        NoiseSource(unsafe_noise_seed=3).add_(there, 1.0)
    assert there["w"].near.tolist() == here["w"].tolist()


def test_twin_units_left_on_the_host_are_noticed():
    _, far, here, _ = both("gpt2-tied")
    with Accelerator(), pytest.raises(MixedDevicesError):
        get_engine("reference")(far, causal_lm_loss, here, l2_clip_norm=0.5)
