"""The settings and their models."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from benchmarks.decoders import Shape, gpt2

LENGTH, VOCABULARY = 128, 8192


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One model and group size."""

    key: str
    width: int
    layers: int
    group: int
    rank: int | None = None

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
    Setting(key="full_d1024_g4", width=1024, layers=2, group=4),
    Setting(key="full_d1024_g1", width=1024, layers=2, group=1),
]


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
