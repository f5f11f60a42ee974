"""Adapters over a frozen base of four bits, on a CPU."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig

from tests.gradients.batches import reason_alone
from userdp.core.errors import UseError
from userdp.gradients import Units, causal_lm_loss, clipped_sum, get_engine
from userdp.gradients.clipping import squared_norm
from userdp.gradients.models import require_uncoupled
from userdp.training.lora import linear_layers
from userdp.training.origin import digest_of_weights

pytest.importorskip("bitsandbytes")
pytestmark = pytest.mark.slow

CLIP = 0.5
FORMS: list[dict[str, Any]] = [
    {"load_in_4bit": True},
    {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_compute_dtype": torch.float32,
    },
]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        bos_token_id=0,
        eos_token_id=0,
    )
    folder = tmp_path_factory.mktemp("base")
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def adapted(folder: Path, form: dict[str, Any], *, packs: bool = False) -> nn.Module:
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=BitsAndBytesConfig(**form), dtype=torch.float32
    )
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = packs
    torch.manual_seed(1)
    wrapped: nn.Module = peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules=linear_layers(model), task_type="CAUSAL_LM")
    )
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=0.1)
    return wrapped


def users() -> list[list[list[int]]]:
    draw = torch.Generator().manual_seed(1)
    lengths = [[5, 11], [1], [7, 3, 9], [8]]
    return [
        [torch.randint(97, (length,), generator=draw).tolist() for length in user]
        for user in lengths
    ]


@pytest.mark.parametrize("form", FORMS, ids=["fp4", "nf4, twice"])
@pytest.mark.parametrize("training", [True, False])
def test_invariant_3_adapters_over_four_bits_are_batched_exactly(
    base: Path, form: dict[str, Any], training: bool
) -> None:
    model, rows = adapted(base, form).train(training), users()
    units = Units.from_rows(rows)
    assert reason_alone(model, causal_lm_loss, units) is None
    before = digest_of_weights(model)
    ours = get_engine("auto")(model, causal_lm_loss, units, l2_clip_norm=CLIP)
    exact = clipped_sum(model, causal_lm_loss, units, l2_clip_norm=CLIP)
    torch.testing.assert_close(ours.norms, exact.norms, rtol=1e-5, atol=1e-7)
    for out in range(len(rows)):
        rest = get_engine("auto")(
            model, causal_lm_loss, Units.from_rows(rows[:out] + rows[out + 1 :]), l2_clip_norm=CLIP
        )
        moved = squared_norm(v - rest.value[name] for name, v in ours.value.items())
        assert math.sqrt(moved) <= CLIP
    assert digest_of_weights(model) == before


def test_layers_that_look_at_a_whole_batch_or_change_when_evaluated_are_refused(base: Path) -> None:
    with pytest.raises(UseError, match="outlying columns"):
        require_uncoupled(adapted(base, {"load_in_8bit": True}))
    with pytest.raises(UseError, match="packs its weights"):
        require_uncoupled(adapted(base, FORMS[0], packs=True))
