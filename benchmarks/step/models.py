"""The settings and their models."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks.decoders import Shape, gpt2
from userdp.gradients import Loss, causal_lm_loss

LENGTH, VOCABULARY = 128, 8192


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One model and group size."""

    key: str
    width: int
    layers: int
    group: int
    rank: int | None = None
    precision: str = "float32"

    @property
    def shape(self) -> Shape:
        return Shape(
            layers=self.layers,
            width=self.width,
            heads=self.width // 64,
            vocabulary=VOCABULARY,
            length=LENGTH,
        )


SETTINGS = [
    Setting(key="full_g4", width=256, layers=4, group=4),
    Setting(key="full_g1", width=256, layers=4, group=1),
    Setting(key="lora_g4", width=256, layers=4, group=4, rank=8),
    Setting(key="lora_g1", width=256, layers=4, group=1, rank=8),
    Setting(key="full_g4_bfloat16", width=256, layers=4, group=4, precision="bfloat16"),
    Setting(key="full_g1_bfloat16", width=256, layers=4, group=1, precision="bfloat16"),
    Setting(key="lora_g4_bfloat16", width=256, layers=4, group=4, rank=8, precision="bfloat16"),
    Setting(key="lora_g1_bfloat16", width=256, layers=4, group=1, rank=8, precision="bfloat16"),
    Setting(key="full_d1024_g4", width=1024, layers=2, group=4),
    Setting(key="full_d1024_g1", width=1024, layers=2, group=1),
]


def loss_of(setting: Setting, *, device: str) -> Loss:
    """The built-in loss, under autocast where a setting is in fewer bits than float32."""
    if setting.precision == "float32":
        return causal_lm_loss

    def loss(
        model: nn.Module, input_ids: Tensor, lengths: Tensor, targets: Tensor | None = None
    ) -> Tensor:
        with torch.autocast(device, dtype=getattr(torch, setting.precision)):
            return causal_lm_loss(model, input_ids, lengths, targets)

    return loss


def build(setting: Setting, *, device: str) -> nn.Module:
    model = gpt2(setting.shape, device=device)
    if setting.rank is not None:
        import peft

        names = ["c_attn", "c_proj", "c_fc"]
        config = peft.LoraConfig(r=setting.rank, target_modules=names, fan_in_fan_out=True)
        model = peft.get_peft_model(model, config)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter, std=0.02)
    return model.to(device).train()
