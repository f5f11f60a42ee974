"""GPT-2 style decoders of random weights, and cohorts of random tokens for them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from userdp.gradients import Units


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A GPT-2 style decoder and the length of its sequences."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    length: int


def gpt2(shape: Shape, *, tied: bool = True, device: str = "cpu") -> nn.Module:
    """A model of random weights, built on ``device``, in training mode."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=shape.vocabulary,
        n_positions=shape.length,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=tied,
    )
    with torch.device(device):
        model: nn.Module = GPT2LMHeadModel(config)
    return model.to(device).train()


def cohort(sequences: int, group: int, shape: Shape, *, device: str) -> Units:
    """Random sequences of full length, in units of ``group``."""
    generator = torch.Generator().manual_seed(1)
    return Units(
        input_ids=torch.randint(shape.vocabulary, (sequences, shape.length), generator=generator),
        lengths=torch.full((sequences,), shape.length),
        offsets=torch.arange(0, sequences + 1, group),
    ).to(device)
