"""A private step over an ordinary one: the decoder, LoRA on GPT-2 sizes, a sharded model.

The decoder is that of Charles et al. 2024 (24 layers, d = 1024, vocabulary 50,257, T = 128): 128
sequences in units of 1, 4, 16, 64. LoRA of rank 32 takes 512 or 1024 sequences of 128 tokens in
passes, as in Chua et al. 2024, Table 12; units of 1 and 4. The sharded decoder is taken apart by
FSDP2 over one process.
"""

from __future__ import annotations

import time

import torch
from torch import nn

from benchmarks.decoders import Shape, cohort, gpt2
from benchmarks.gpu.setting import (
    DECODER,
    GPT2_SIZES,
    TINY,
    Result,
    Setting,
    process_group,
)
from benchmarks.gpu.timing import compare
from userdp.gradients import trainable_parameters
from userdp.gradients.shards import shard
from userdp.training.config import Precision, TrainConfig
from userdp.training.lora import choose_trained

GROUPS = (1, 4, 16, 64)
TOGETHER = 3
"""Steps of a decoder that are timed as one."""

LORA_SEQUENCES = {"gpt2": 1024, "gpt2-medium": 512, "gpt2-large": 512}
"""Of a step; theirs are of 1024."""


def decoder(group: int, precision: Precision, setting: Setting, deadline: float) -> Result:
    shape = TINY if setting.tiny else DECODER
    model = gpt2(shape, device=setting.device)
    units = cohort(max(group, 16) if setting.tiny else 128, group, shape, device=setting.device)
    row = compare(
        model, precision, units, ["auto"], setting, deadline, micro_batch=64, together=TOGETHER
    )
    return {"parameters": sum(p.numel() for p in model.parameters()), "rows": [row]}


def sharded(group: int, setting: Setting, deadline: float) -> Result:
    shape = TINY if setting.tiny else DECODER
    with process_group(setting.device):
        model = shard(gpt2(shape, device=setting.device))
        units = cohort(16 if setting.tiny else 128, group, shape, device=setting.device)
        # In fewer bits it refuses.
        row = compare(
            model,
            Precision.FLOAT32,
            units,
            ["sharded"],
            setting,
            deadline,
            micro_batch=64,
            together=TOGETHER,
        )
    return {"rows": [row]}


def with_adapters(shape: Shape, setting: Setting) -> nn.Module:
    """LoRA of rank 32 on a model of this shape."""
    model = choose_trained(gpt2(shape), TrainConfig(lora_rank=4 if setting.tiny else 32))
    with torch.no_grad():  # adapters are born as zeros, which leaves half of them no gradient
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.02)
    return model.to(setting.device).train()


def lora(size: str, precision: Precision, setting: Setting, deadline: float) -> Result:
    shape = TINY if setting.tiny else GPT2_SIZES[size]
    model = with_adapters(shape, setting)
    rows: list[Result] = []
    share = (deadline - time.monotonic()) / 2
    skipped = []
    for group in (1, 4):
        if rows and time.monotonic() > deadline:
            skipped.append(f"G = {group}")
            continue
        until = time.monotonic() + share
        sequences = 16 if setting.tiny else LORA_SEQUENCES[size]
        units = cohort(sequences, group, shape, device=setting.device)
        rows.append(compare(model, precision, units, ["auto"], setting, until, micro_batch=64))
    trained = sum(p.numel() for p in trainable_parameters(model).values())
    return {"trained_parameters": trained, "rows": rows, "skipped": skipped}
