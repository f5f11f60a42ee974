"""A small model that draws masks."""

from __future__ import annotations

import torch
from torch import nn
from transformers import AutoModelForCausalLM, GPT2Config

from tests.gradients.conftest import VOCABULARY


def with_dropout() -> nn.Module:
    """GPT-2 in training mode, with the dropout that it has by default; the same weights always."""
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=1, n_head=2, n_positions=32,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    torch.manual_seed(7)
    model: nn.Module = AutoModelForCausalLM.from_config(config)
    return model.train()
