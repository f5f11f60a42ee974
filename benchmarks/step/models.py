"""The models and cohorts of the settings."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from userdp.gradients import Units

LENGTH, VOCABULARY = 128, 8192


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One model and group size."""

    key: str
    width: int
    layers: int
    group: int
    rank: int | None = None


SETTINGS = [
    Setting(key="full_g4", width=256, layers=4, group=4),
    Setting(key="full_g1", width=256, layers=4, group=1),
    Setting(key="lora_g4", width=256, layers=4, group=4, rank=8),
    Setting(key="lora_g1", width=256, layers=4, group=1, rank=8),
    Setting(key="full_d1024_g4", width=1024, layers=2, group=4),
    Setting(key="full_d1024_g1", width=1024, layers=2, group=1),
]


def build(setting: Setting, *, device: str) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY,
            n_positions=LENGTH,
            n_embd=setting.width,
            n_layer=setting.layers,
            n_head=setting.width // 64,
            attn_pdrop=0.0,
            embd_pdrop=0.0,
            resid_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
        )
    )
    if setting.rank is not None:
        import peft

        names = ["c_attn", "c_proj", "c_fc"]
        config = peft.LoraConfig(r=setting.rank, target_modules=names, fan_in_fan_out=True)
        model = peft.get_peft_model(model, config)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter, std=0.02)
    return model.to(device).train()


def cohort(setting: Setting, sequences: int, device: str) -> Units:
    generator = torch.Generator().manual_seed(1)
    return Units(
        input_ids=torch.randint(0, VOCABULARY, (sequences, LENGTH), generator=generator).to(device),
        lengths=torch.full((sequences,), LENGTH).to(device),
        offsets=torch.arange(0, sequences + 1, setting.group),
    )
