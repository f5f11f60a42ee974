"""The settings that the model is fitted to, and the others that it is held against."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import nn

from benchmarks.decoders import Shape, gpt2
from userdp.gradients import causal_lm_loss
from userdp.gradients.cost import Work
from userdp.gradients.engines.engine import Task
from userdp.gradients.engines.passes import most_units, rows_per_pass


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One model, group size and cohort; ``rank`` trains adapters in place of all weights."""

    key: str
    width: int
    layers: int
    vocabulary: int
    group: int
    sequences: int
    rank: int | None = None

    @property
    def units_in_pass(self) -> int:
        """As many as the engine takes on this CPU, at full depth."""
        model = self.build(device="meta")
        units = self.work.units(self.sequences // self.group)
        task = Task(model=model, loss=causal_lm_loss, units=units, l2_clip_norm=1.0)
        rows = rows_per_pass(units, task.micro_batch)
        return min(max(1, rows // self.group), most_units(task), len(units))

    @property
    def passes(self) -> float:
        """In a step."""
        return self.sequences / self.group / self.units_in_pass

    @property
    def engine(self) -> str:
        """The one that `auto` takes."""
        return "bookkeeping" if self.rank is None else "lora"

    def shape(self, layers: int) -> Shape:
        return Shape(
            layers=layers,
            width=self.width,
            heads=self.width // 64,
            vocabulary=self.vocabulary,
            length=128,
        )

    def build(self, layers: int | None = None, *, device: str = "cpu") -> nn.Module:
        model = gpt2(self.shape(layers or self.layers), device=device)
        if self.rank is None:
            return model
        import peft

        names = ["c_attn", "c_proj", "c_fc"]
        config = peft.LoraConfig(r=self.rank, target_modules=names, fan_in_fan_out=True)
        model = peft.get_peft_model(model, config)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:  # zero at first: some of its products would be of zeros
                nn.init.normal_(parameter, std=0.02)
        return model.train()

    @property
    def work(self) -> Work:
        return Work(
            build=self.build,
            depth=self.layers,
            loss=causal_lm_loss,
            vocabulary=self.vocabulary,
            length=128,
            group_size=self.group,
        )


_SMALL = Setting(key="", width=512, layers=2, vocabulary=16384, group=1, sequences=16)

FITTED = (
    replace(_SMALL, key="full_d512_g1"),
    replace(_SMALL, key="full_d512_g4", group=4),
    replace(_SMALL, key="full_d1024_g1", width=1024, vocabulary=8192),
    replace(_SMALL, key="full_d1024_g4", width=1024, vocabulary=8192, group=4),
    replace(_SMALL, key="lora_d768_g1", width=768, vocabulary=8192, rank=32),
    replace(_SMALL, key="lora_d768_g4", width=768, vocabulary=8192, group=4, rank=32),
)
"""Small in depth and vocabulary, so that fitting takes minutes."""

_DECODER = Setting(key="", width=1024, layers=24, vocabulary=50257, group=1, sequences=8)

HELD = (
    replace(_DECODER, key="decoder_350m_g1"),
    replace(_DECODER, key="decoder_350m_g4", group=4),
    replace(_DECODER, key="gpt2_medium_lora_g1", rank=32, sequences=10),
    replace(
        _DECODER, key="gpt2_small_lora_g4", width=768, layers=12, group=4, rank=32, sequences=16
    ),
)
"""At paper size: Charles et al. 2024 (350 M parameters), Chua et al. 2024 (adapters of rank 32)."""
