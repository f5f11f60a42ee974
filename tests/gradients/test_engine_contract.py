"""One contract for every engine; the oracle is the reference engine in float64."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma2Config,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    PhiConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from tests.gradients.batches import batched_sum
from tests.speed import fast_then_slow
from userdp.clip import ClipForm
from userdp.gradients import ClippedSum, ClipRule, Units, causal_lm_loss, trainable_parameters
from userdp.gradients import clipped_sum as reference
from userdp.gradients.clipping import squared_norm
from userdp.gradients.engines import ENGINES, get_engine
from userdp.gradients.engines.uses import Form
from userdp.gradients.precision import margin

VOCABULARY = 29
Rows = list[list[list[int]]]
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,
}
GATED = {**SHAPE, "intermediate_size": 24, "num_key_value_heads": 1}


def _gpt2(*, tied: bool) -> PretrainedConfig:
    return GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=32,
        tie_word_embeddings=tied,
        bos_token_id=0,
        eos_token_id=0,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
    )


FAMILIES: dict[str, Callable[[], PretrainedConfig]] = {
    "gpt2-tied": lambda: _gpt2(tied=True),
    "gpt2-untied": lambda: _gpt2(tied=False),
    "llama": lambda: LlamaConfig(**GATED),
    "mistral": lambda: MistralConfig(**GATED),
    "qwen2": lambda: Qwen2Config(**GATED, tie_word_embeddings=True),
    "qwen3": lambda: Qwen3Config(**GATED, head_dim=8),
    "gemma": lambda: GemmaConfig(**GATED, head_dim=8),
    "gemma2": lambda: Gemma2Config(**GATED, head_dim=8),
    "gpt-neox": lambda: GPTNeoXConfig(**SHAPE, intermediate_size=24),
    "opt": lambda: OPTConfig(**SHAPE, ffn_dim=24, word_embed_proj_dim=16, dropout=0.0),
    "bloom": lambda: BloomConfig(vocab_size=VOCABULARY, hidden_size=16, n_layer=2, n_head=2),
    "phi": lambda: PhiConfig(**SHAPE, intermediate_size=24),
}


def tiny(family: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(7)
    model: nn.Module = AutoModelForCausalLM.from_config(FAMILIES[family]())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.to(dtype).eval()


def ragged(sizes: list[int], *, seed: int = 0, longest: int = 9) -> Rows:
    draw = random.Random(seed)
    return [
        [[draw.randrange(VOCABULARY) for _ in range(draw.randint(2, longest))] for _ in range(k)]
        for k in sizes
    ]


def agree(
    model: nn.Module, found: ClippedSum, exact: ClippedSum, *, norms: float, values: float
) -> None:
    torch.testing.assert_close(found.norms, exact.norms, rtol=norms, atol=norms * 1e-3)
    torch.testing.assert_close(found.losses, exact.losses, rtol=1e-5, atol=1e-6)
    assert list(found.value) == list(trainable_parameters(model))
    assert {v.dtype for v in found.value.values()} == {torch.float64}
    for name, value in found.value.items():
        torch.testing.assert_close(value, exact.value[name], rtol=values, atol=values)
    assert (found.non_finite, found.sensitivity) == (exact.non_finite, 0.7)


def oracle(model: nn.Module, units: Units, item: float | None, aim: float) -> ClippedSum:
    """The reference in float64, clipped where the engine under test aims."""
    wide = copy.deepcopy(model).double()
    exact = reference(wide, causal_lm_loss, units, l2_clip_norm=aim, item_clip_norm=item)
    return ClippedSum(
        value=exact.value,
        norms=exact.norms,
        losses=exact.losses,
        non_finite=exact.non_finite,
        sensitivity=0.7,
    )


@pytest.mark.parametrize("family", fast_then_slow(FAMILIES))
@pytest.mark.parametrize("form", fast_then_slow([None, *Form]))
def test_batches_agree_with_the_reference_for_every_family(family: str, form: Form | None) -> None:
    """Here a fallback would be an error."""
    model = tiny(family)
    exactly = {"gpt2-tied", "gpt2-untied", "gpt-neox", "opt", "bloom", "phi"}
    close = 1e-11 if family in exactly else 1e-5  # RMSNorm rounds to float32 inside
    for sizes in ([3, 1, 2], [2, 2]):
        units = Units.from_rows(ragged(sizes))
        aim = 0.7 * (1 - margin(p.dtype for p in model.parameters()))
        for item in (None, 1.5):
            found = batched_sum(
                model,
                causal_lm_loss,
                units,
                l2_clip_norm=0.7,
                item_clip_norm=item,
                form=form,
            )
            agree(model, found, oracle(model, units, item, aim), norms=close, values=close)


@pytest.mark.parametrize("family", fast_then_slow(["gpt2-tied", "gpt2-untied", "llama"]))
@pytest.mark.parametrize("dtype", fast_then_slow([torch.float32, torch.float64]))
@pytest.mark.parametrize("name", ENGINES)
def test_norms_agree_with_the_float64_reference_to_1e_5(
    name: str, dtype: torch.dtype, family: str
) -> None:
    model = tiny(family, dtype)
    units = Units.from_rows([*ragged([3, 1, 2]), [[4]], [], [[5, 6], [7]]])
    share = 0 if name == "reference" else margin(p.dtype for p in model.parameters())
    exact = oracle(model, units, None, 0.7 * (1 - share))
    for micro_batch in (32, 3):
        found = get_engine(name)(
            model, causal_lm_loss, units, l2_clip_norm=0.7, micro_batch=micro_batch
        )
        agree(model, found, exact, norms=1e-5, values=1e-5)


def distance(one: ClippedSum, two: ClippedSum) -> float:
    return math.sqrt(squared_norm(one.value[name] - two.value[name] for name in one.value))


def largest_move(engine: Callable[[Rows], ClippedSum], units: Rows) -> float:
    everybody = engine(units)
    return max(
        distance(everybody, engine(units[:out] + units[out + 1 :])) for out in range(len(units))
    )


@pytest.mark.parametrize(
    ("micro_batch", "item"), fast_then_slow([(2, None), (32, None), (32, 1.5)])
)
@pytest.mark.parametrize("family", fast_then_slow(["gpt2-tied", "gpt2-untied", "llama"]))
@pytest.mark.parametrize("dtype", fast_then_slow([torch.float32, torch.float64, torch.bfloat16]))
@pytest.mark.parametrize("name", ENGINES)
def test_invariant_3_sensitivity_is_at_most_the_clip_norm_for_every_engine(
    name: str, dtype: torch.dtype, family: str, micro_batch: int, item: float | None
) -> None:
    model = tiny(family, dtype)

    def engine(rows: Rows) -> ClippedSum:
        return get_engine(name)(
            model,
            causal_lm_loss,
            Units.from_rows(rows),
            l2_clip_norm=0.7,
            item_clip_norm=item,
            micro_batch=micro_batch,
        )

    assert 0.9 * 0.7 < largest_move(engine, ragged([2, 1, 3])) <= 0.7


@pytest.mark.parametrize("name", list(ENGINES))
def test_an_empty_cohort_and_units_without_rows_add_nothing(name: str) -> None:
    model = tiny("gpt2-tied", torch.float32)
    for rows in ([], [[], [[]], [[3]]]):
        found = get_engine(name)(model, causal_lm_loss, Units.from_rows(rows), l2_clip_norm=1.0)
        assert not any(v.any() for v in found.value.values())
        assert found.norms.shape == (len(rows),)
        assert bool((found.norms < 1e-12).all())


def test_invariant_6_a_gradient_of_nothing_times_a_huge_factor_is_nothing() -> None:
    """As automatic clipping asks for at the largest clip norm; infinity times 0 would be NaN."""
    torch.manual_seed(0)
    table, out = nn.Embedding(8, 20), nn.Linear(20, 20)
    table.weight.requires_grad_(False)
    table.weight.mul_(1000)

    def loss(model: nn.Module, input_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return torch.tanh(model(input_ids)[:, 0] / 1000).mean(1) * (input_ids[:, 0] != 3)

    units = Units.from_rows([[[1, 2], [4, 5]], [[3, 3]], [[5, 6], [1, 1]]])
    rule = ClipRule(form=ClipForm.AUTOMATIC, stability=1e-6)
    for clip in (1e20, 1e30):
        found = get_engine("auto")(
            nn.Sequential(table, out), loss, units, l2_clip_norm=clip, rule=rule
        )
        assert all(bool(value.isfinite().all()) for value in found.value.values())


@pytest.mark.parametrize("value", fast_then_slow([math.nan, math.inf, 3e38]))
@pytest.mark.parametrize("item", fast_then_slow([None, 0.5]))
@pytest.mark.parametrize("name", ENGINES)
def test_invariant_6_a_non_finite_unit_adds_zero_and_hurts_nobody_else(
    name: str, item: float | None, value: float
) -> None:
    model = tiny("gpt2-tied", torch.float32)
    poison = VOCABULARY - 1

    def loss(model: nn.Module, input_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        hit = (input_ids == poison).any(1)
        return causal_lm_loss(model, input_ids, lengths) * torch.where(hit, value, 1.0)

    good = [[[t % poison for t in row] for row in unit] for unit in ragged([2, 3, 1])]
    bad = [[3, 4, 5], [1, poison, 2]]
    engine = get_engine(name)

    def run(rows: Rows) -> ClippedSum:
        return engine(model, loss, Units.from_rows(rows), l2_clip_norm=1.0, item_clip_norm=item)

    without, mixed = run(good), run([good[0], good[1], bad, good[2], bad])
    assert (without.non_finite, mixed.non_finite) == (0, 2)
    assert distance(without, mixed) < 1e-5


@pytest.mark.parametrize("name", list(ENGINES))
def test_frozen_parts_are_left_out_and_grad_is_left_alone(name: str) -> None:
    model = tiny("llama", torch.float32)
    for parameter_name, parameter in model.named_parameters():
        parameter.requires_grad_(
            "q_proj" in parameter_name or parameter_name.endswith("norm.weight")
        )
    units = Units.from_rows(ragged([2, 1]))
    found = get_engine(name)(model, causal_lm_loss, units, l2_clip_norm=0.7)
    exact = oracle(model, units, None, 0.7 * (1 - margin(p.dtype for p in model.parameters())))
    if name == "auto":
        agree(model, found, exact, norms=1e-5, values=1e-5)
    assert all("q_proj" in n or n.endswith("norm.weight") for n in found.value)
    assert all(p.grad is None for p in model.parameters())
