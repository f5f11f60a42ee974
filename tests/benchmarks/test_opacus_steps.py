"""What benchmarks time as Opacus's step computes the clipped sum that ours computes."""

import pytest
import torch

from benchmarks.decoders import cohort, gpt2
from benchmarks.gpu.memory import linear_gpt2
from benchmarks.gpu.setting import TINY
from benchmarks.opacus_steps import ghost, replace_conv1d, supported
from userdp.gradients import causal_lm_loss, clipped_sum

# Opacus: "Full backward hook is firing ... since no inputs require gradients".
pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook:UserWarning")
CLIP = 0.5  # below every unit's norm
CLOSE = {"rtol": 1e-4, "atol": 1e-6}  # float32, and Opacus adds 1e-6 to a norm


def exact(model, units, clip=CLIP):
    found = clipped_sum(model, causal_lm_loss, units, l2_clip_norm=clip)
    assert found.norms.min() > CLIP
    return [tensor.float() for tensor in found.value.values()]


def same(found, expected):
    return len(found) == len(expected) and all(
        torch.allclose(a, b, **CLOSE) for a, b in zip(found, expected, strict=True)
    )


def test_the_model_for_opacus_is_the_same_function():
    model, units = gpt2(TINY).eval(), cohort(2, 1, TINY, device="cpu")
    losses = causal_lm_loss(model, units.input_ids, units.lengths)
    other = supported(model)
    assert not any(type(module).__name__ == "Conv1D" for module in other.modules())
    assert other.lm_head.weight is not other.transformer.wte.weight
    assert torch.allclose(causal_lm_loss(other, units.input_ids, units.lengths), losses)
    assert model.lm_head.weight is model.transformer.wte.weight
    replace_conv1d(model)
    assert torch.allclose(causal_lm_loss(model, units.input_ids, units.lengths), losses)


def test_ghost_clipping_is_the_clipped_sum_over_sequences():
    pytest.importorskip("opacus")
    model = linear_gpt2(TINY, "cpu")
    units = cohort(4, 1, TINY, device="cpu")
    expected, twice = exact(model, units), exact(model, units, 2 * CLIP)
    for _ in range(2):  # a second step is as good as the first
        ghost(model, l2_clip_norm=CLIP)(units)
        found = [parameter.grad for parameter in model.parameters()]
        assert same(found, expected)
        assert not same(found, twice)
