"""The models of docs/results/paper-size.md, and how many sequences a round takes of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.decoders import Shape, gpt2
from benchmarks.gpu.setting import DECODER, GPT2_SIZES
from userdp.training.config import TrainConfig
from userdp.training.lora import add_adapters

MEASURED = Path("docs/results/paper-size.jsonl")
RANK = 32
LLAMA_1B = Shape(layers=16, width=2048, heads=32, vocabulary=128_256, length=128)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One model, and the units of its rounds.

    Attributes:
        key: its name on the command line and in the results.
        model: its name on the page.
        shape: of the model.
        sequences: of a round.
        group: sequences of a unit.
        rank: of LoRA; None trains all parameters.
        llama: whether it is a Llama rather than a GPT-2.
    """

    key: str
    model: str
    shape: Shape
    sequences: int
    group: int
    rank: int | None = None
    llama: bool = False


_DECODER = "decoder, 353 M"

SETTINGS = [
    Setting(key="decoder_g1", model=_DECODER, shape=DECODER, sequences=32, group=1),
    Setting(key="decoder_g4", model=_DECODER, shape=DECODER, sequences=32, group=4),
    Setting(key="decoder_g16", model=_DECODER, shape=DECODER, sequences=32, group=16),
    *(
        Setting(
            key=f"lora_{name.removeprefix('gpt2').removeprefix('-') or 'small'}",
            model=f"{name}, LoRA r = {RANK}",
            shape=shape,
            sequences=16,
            group=1,
            rank=RANK,
        )
        for name, shape in GPT2_SIZES.items()
    ),
    Setting(
        key="lora_llama_1b",
        model=f"Llama, 1.2 G, LoRA r = {RANK}",
        shape=LLAMA_1B,
        sequences=8,
        group=1,
        rank=RANK,
        llama=True,
    ),
    Setting(key="decoder_g2", model=_DECODER, shape=DECODER, sequences=32, group=2),
    Setting(key="decoder_g8", model=_DECODER, shape=DECODER, sequences=32, group=8),
    Setting(key="full_small", model="gpt2", shape=GPT2_SIZES["gpt2"], sequences=32, group=1),
    Setting(
        key="lora_medium_g4",
        model=f"gpt2-medium, LoRA r = {RANK}",
        shape=GPT2_SIZES["gpt2-medium"],
        sequences=16,
        group=4,
        rank=RANK,
    ),
    Setting(key="full_small_g4", model="gpt2", shape=GPT2_SIZES["gpt2"], sequences=32, group=4),
    Setting(
        key="full_medium",
        model="gpt2-medium",
        shape=GPT2_SIZES["gpt2-medium"],
        sequences=32,
        group=1,
    ),
    Setting(
        key="lora_small_g4",
        model=f"gpt2, LoRA r = {RANK}",
        shape=GPT2_SIZES["gpt2"],
        sequences=32,
        group=4,
        rank=RANK,
    ),
    Setting(
        key="lora_large_g4",
        model=f"gpt2-large, LoRA r = {RANK}",
        shape=GPT2_SIZES["gpt2-large"],
        sequences=16,
        group=4,
        rank=RANK,
    ),
]


def setting_of(key: str) -> Setting:
    return next(setting for setting in SETTINGS if setting.key == key)


def build(setting: Setting) -> nn.Module:
    """The model of random weights, in training mode, with its adapters."""
    model: nn.Module = llama(setting.shape) if setting.llama else gpt2(setting.shape)
    if setting.rank is not None:
        model = add_adapters(model, TrainConfig(lora_rank=setting.rank))
        with torch.no_grad():  # born as zeros, they would leave half of the adapters no gradient
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.normal_(std=0.02)
    return model.train()


def llama(shape: Shape) -> nn.Module:
    """A Llama of random weights, with a quarter of the heads for keys and values."""
    torch.manual_seed(0)
    model: nn.Module = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape.vocabulary,
            hidden_size=shape.width,
            intermediate_size=4 * shape.width,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=max(1, shape.heads // 4),
            max_position_embeddings=shape.length,
            tie_word_embeddings=True,
        )
    )
    return model
