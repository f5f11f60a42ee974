"""Tiny models of the families that must work, and ragged units to feed them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    PretrainedConfig,
    Qwen2Config,
)
from transformers.utils import logging

from userdp.gradients.certificate.rows import Rows

logging.set_verbosity_error()

VOCABULARY = 23

MakeModel = Callable[..., nn.Module]
MakeRows = Callable[..., list[list[list[int]]]]


def _config(family: str) -> PretrainedConfig:
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    common = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "max_position_embeddings": 32,
        **ends,
    }
    if family.startswith("gpt2"):
        return GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=16,
            n_layer=1,
            n_head=2,
            n_positions=32,
            tie_word_embeddings=family == "gpt2-tied",
            **ends,
        )
    if family == "llama":
        return LlamaConfig(**common, num_key_value_heads=1)
    if family == "gpt-neox":
        return GPTNeoXConfig(**common)
    assert family == "qwen2"
    return Qwen2Config(**common, num_key_value_heads=1, tie_word_embeddings=True)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads only slow models down that are this small."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def make_model() -> MakeModel:
    """``make_model(family, dtype)``: a tiny model with large enough weights to be interesting."""

    def make(family: str = "gpt2-tied", dtype: torch.dtype = torch.float32) -> nn.Module:
        torch.manual_seed(7)
        model: nn.Module = AutoModelForCausalLM.from_config(_config(family))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
        return model.to(dtype).eval()

    return make


@pytest.fixture
def make_rows() -> MakeRows:
    """``make_rows(rows_per_unit, ...)``: ragged random token rows, unit by unit."""

    def make(
        rows_per_unit: list[int], *, seed: int = 0, shortest: int = 2, longest: int = 9
    ) -> list[list[list[int]]]:
        draw = random.Random(seed)
        return [
            [
                [draw.randrange(VOCABULARY) for _ in range(draw.randint(shortest, longest))]
                for _ in range(rows)
            ]
            for rows in rows_per_unit
        ]

    return make


@pytest.fixture
def unknown_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor of unknown place alone ends no proof: what stands behind that is tested too."""
    monkeypatch.setattr(Rows, "_end_if_unknown", lambda rows, result: None)
