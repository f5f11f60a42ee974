"""Autocast, activation checkpointing and low-precision bases keep the sensitivity."""

import math
import random

import pytest
import torch
import transformers

from tests.speed import fast_then_slow
from userdp.gradients import Units, get_engine, trainable_parameters
from userdp.gradients.clipping import squared_norm
from userdp.training.causal_models import enable_checkpointing
from userdp.training.config import Precision, TrainConfig
from userdp.training.lora import add_adapters
from userdp.training.store_losses import build_loss

CLIP = 1e-3
BF16 = Precision.BFLOAT16
LORA = {"lora_rank": 2, "lora_targets": ("c_attn",)}
AGAIN = {"activation_checkpointing": True}
SETTINGS = {
    "autocast": TrainConfig(precision=BF16),
    "autocast and checkpointing": TrainConfig(precision=BF16, **AGAIN),
    "bfloat16 base": TrainConfig(**LORA, base_precision=BF16),
    "all of it": TrainConfig(**LORA, base_precision=BF16, precision=BF16, **AGAIN),
}


def clipping(engine, setting):
    """Clips users with the model as `loop.train` builds it; its adapters are not zero any more."""
    torch.manual_seed(3)
    config = SETTINGS[setting]
    shape = transformers.GPT2Config(
        vocab_size=29, n_embd=16, n_layer=2, n_head=2, n_positions=16, bos_token_id=0,
        eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_config(shape)
    if config.base_precision is BF16:
        model = model.to(torch.bfloat16)
    model = add_adapters(model.train(), config)
    if config.activation_checkpointing:
        enable_checkpointing(model)
    with torch.no_grad():
        for parameter in trainable_parameters(model).values():
            parameter.add_(0.1 * torch.randn_like(parameter))
    loss = build_loss(config, model)

    def clip(users):
        units = Units.from_rows(users, width=9)
        return get_engine(engine)(model, loss, units, l2_clip_norm=CLIP)

    return clip


def users(*sizes):
    draw = random.Random(0)
    return [
        [[draw.randrange(29) for _ in range(draw.randint(3, 9))] for _ in range(k)] for k in sizes
    ]


@pytest.mark.parametrize("setting", fast_then_slow(SETTINGS))
@pytest.mark.parametrize("name", ["auto", "reference"])
def test_invariant_3_one_user_moves_the_sum_by_at_most_the_clip_norm(name, setting):
    """And a user's bits are its own: rounding in bfloat16 would reach everybody's gradient."""
    clip, units = clipping(name, setting), users(2, 1, 3, 2)
    everybody, moves = clip(units), []
    norms = everybody.norms.tolist()
    assert min(norms) > CLIP
    for k in range(len(units)):
        rest = clip(units[:k] + units[k + 1 :])
        assert "bfloat16" not in str(SETTINGS[setting]) or rest.norms.tolist() == (
            norms[:k] + norms[k + 1 :]
        )
        moved = squared_norm(everybody.value[n] - v for n, v in rest.value.items())
        moves.append(math.sqrt(moved))
    assert 0.9 * CLIP < max(moves) <= CLIP
    assert clip(units[::-1]).norms.tolist() == norms[::-1]
