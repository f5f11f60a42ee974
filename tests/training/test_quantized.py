"""Adapters over a frozen base of four bits, on a CPU."""

import math

import peft
import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig

from tests.gradients.batches import reason_alone
from userdp.core.errors import UseError
from userdp.gradients import Units, causal_lm_loss, clipped_sum, get_engine
from userdp.gradients.clip_factors import squared_norm
from userdp.gradients.models import require_uncoupled
from userdp.training.lora import linear_layers
from userdp.training.model_origin import digests_of

pytest.importorskip("bitsandbytes")
pytestmark = pytest.mark.slow

CLIP = 0.5
TWICE = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
FORMS = [
    {"load_in_4bit": True},
    {"load_in_4bit": True, **TWICE, "bnb_4bit_compute_dtype": torch.float32},
]


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("base")
    shape = LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(shape).save_pretrained(folder)

    def adapted(form, *, packs=False):
        how = {"quantization_config": BitsAndBytesConfig(**form), "dtype": torch.float32}
        model = AutoModelForCausalLM.from_pretrained(folder, **how)
        for module in model.modules():
            if hasattr(module, "support_avx512bf16_for_cpu"):
                module.support_avx512bf16_for_cpu = packs
        torch.manual_seed(1)
        lora = peft.LoraConfig(r=2, target_modules=linear_layers(model), task_type="CAUSAL_LM")
        wrapped = peft.get_peft_model(model, lora)
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:
                nn.init.normal_(parameter, std=0.1)
        return wrapped

    return adapted


@pytest.mark.parametrize("form", FORMS, ids=["fp4", "nf4, twice"])
@pytest.mark.parametrize("training", [True, False])
def test_invariant_3_adapters_over_four_bits_are_batched_exactly(adapted, form, training):
    draw, model = torch.Generator().manual_seed(1), adapted(form).train(training)
    lengths = [[5, 11], [1], [7, 3, 9], [8]]
    rows = [[torch.randint(97, (n,), generator=draw).tolist() for n in user] for user in lengths]

    def clip(users, engine):
        return engine(model, causal_lm_loss, Units.from_rows(users), l2_clip_norm=CLIP)

    assert reason_alone(model, causal_lm_loss, Units.from_rows(rows)) is None
    before, auto = digests_of(model).whole, get_engine("auto")
    ours, exact = clip(rows, auto), clip(rows, clipped_sum)
    torch.testing.assert_close(ours.norms, exact.norms, rtol=1e-5, atol=1e-7)
    for out in range(len(rows)):
        rest = clip(rows[:out] + rows[out + 1 :], auto).value
        assert math.sqrt(squared_norm(v - rest[name] for name, v in ours.value.items())) <= CLIP
    assert digests_of(model).whole == before


def test_layers_that_look_at_a_whole_batch_or_change_when_evaluated_are_refused(adapted):
    with pytest.raises(UseError, match="outlying columns"):
        require_uncoupled(adapted({"load_in_8bit": True}))
    with pytest.raises(UseError, match="packs its weights"):
        require_uncoupled(adapted(FORMS[0], packs=True))
