"""What the parts share: where they run, the sizes of models, the losses."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks.decoders import Shape
from userdp.gradients import Loss
from userdp.training.config import Precision, TrainConfig
from userdp.training.store_losses import build_loss

Result = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Where the parts run.

    Args:
        device: cuda or cpu.
        tiny: models and cohorts that show that the code runs, and no time.
        memory_gib: the budget of the memory parts.
    """

    device: str
    tiny: bool
    memory_gib: float

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"


TINY = Shape(layers=2, width=32, heads=2, vocabulary=96, length=16)
DECODER = Shape(layers=24, width=1024, heads=16, vocabulary=50257, length=128)
GPT2_SIZES = {
    "gpt2": Shape(layers=12, width=768, heads=12, vocabulary=50257, length=128),
    "gpt2-medium": DECODER,
    "gpt2-large": Shape(layers=36, width=1280, heads=20, vocabulary=50257, length=128),
}


def loss_of(precision: Precision, model: nn.Module) -> Loss:
    return build_loss(TrainConfig(precision=precision), model)


@contextmanager
def process_group(device: str) -> Iterator[None]:
    """A group of this process alone, which FSDP2 asks for."""
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group(
            "nccl" if device == "cuda" else "gloo",
            init_method=f"file://{folder}/meet",
            rank=0,
            world_size=1,
        )
        try:
            yield
        finally:
            torch.distributed.destroy_process_group()
