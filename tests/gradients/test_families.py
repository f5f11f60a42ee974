"""Every family of `benchmarks.families`: `auto` computes the reference's sum, batched or not.

The whole table, with every engine, is `make families` (docs/results/families.md).
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from transformers.utils import logging

from benchmarks.counted import counted_reference
from benchmarks.families.measure import cohort, without
from benchmarks.families.models import FAMILIES, build
from tests.speed import fast_then_slow
from userdp.errors import UseError
from userdp.gradients import ClippedSum, Loss, causal_lm_loss, clipped_sum, get_engine
from userdp.gradients.clipping import squared_norm
from userdp.gradients.engines.choice import choose, why_alone
from userdp.gradients.engines.engine import Task
from userdp.training.lora import linear_layers

logging.set_verbosity(60)  # it logs whole configurations

ROUTED = {name for name, family in FAMILIES.items() if family.kind == "experts"}
ALONE = {*ROUTED, "Apertus", "Jamba", "MiniMax", "Qwen3-Next", "Zamba"}
"""Tokens choose experts, or (Apertus) a side of zero; Zamba's heads have matrices of their own."""

REFUSED = {"RecurrentGemma": "recurrent_states"}
"""It keeps its state from one pass to the next."""

FAST = ["Mamba-2", "Mixtral"]
LORA = ["Llama", "Gemma 2", "Phi-3", "Mamba", "OLMoE", "Falcon-H1", "GPT-J", "RecurrentGemma"]


def apart(one: ClippedSum, other: ClippedSum) -> float:
    return math.sqrt(squared_norm(v - other.value[name] for name, v in one.value.items()))


def check(name: str, *, adapters: bool) -> None:
    family = FAMILIES[name]
    model, units = build(family, adapters=adapters), cohort(int(family.config["vocab_size"]))
    auto = get_engine("auto")
    if name in REFUSED:
        with pytest.raises(UseError, match=REFUSED[name]):
            auto(model, causal_lm_loss, units, l2_clip_norm=1.0)
        return
    norms = clipped_sum(model, causal_lm_loss, units, l2_clip_norm=1e6).norms
    clip = 0.5 * float(norms[norms > 0].median())
    auto(model, causal_lm_loss, units, l2_clip_norm=clip)  # asks what it asks once
    with counted_reference() as calls:
        ours = auto(model, causal_lm_loss, units, l2_clip_norm=clip)
    # Zamba's heads are frozen under adapters.
    alone = name in ALONE and not (adapters and name == "Zamba")
    assert sum(calls) == (len(units) if alone else 0), choose(model, causal_lm_loss, units).reason
    aimed = Task(model=model, loss=causal_lm_loss, units=units, l2_clip_norm=clip).aim
    exact = clipped_sum(model, causal_lm_loss, units, l2_clip_norm=aimed)
    assert apart(ours, exact) < 1e-4 * clip * len(units)
    torch.testing.assert_close(ours.norms, exact.norms, rtol=1e-4, atol=1e-6)
    largest = without(units, int(norms.argmax()))
    rest = auto(model, causal_lm_loss, largest, l2_clip_norm=clip)
    assert 0.9 * clip < apart(ours, rest) <= clip


@pytest.mark.parametrize(
    "name", fast_then_slow([*FAST, *(n for n in FAMILIES if n not in FAST)], fast=len(FAST))
)
def test_invariant_3_auto_computes_the_clipped_sum_of_every_family(name: str) -> None:
    check(name, adapters=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", LORA)
def test_invariant_3_auto_computes_the_clipped_sum_of_adapters(name: str) -> None:
    check(name, adapters=True)


def test_there_are_families_of_every_kind() -> None:
    kinds = [family.kind for family in FAMILIES.values()]
    assert len(kinds) >= 60
    assert set(kinds) == {"attention", "experts", "state space", "hybrid"}


def why(model: nn.Module, loss: Loss = causal_lm_loss) -> str | None:
    units = cohort(20)
    return why_alone(Task(model=model, loss=loss, units=units, l2_clip_norm=1.0))


def test_a_weight_that_rows_share_is_named_where_nothing_covers_it() -> None:
    model = build(FAMILIES["Zamba"])
    assert why(model) == (
        "6 layers model.layers.*.mamba, model.layers.*.mamba_decoder.mamba (ZambaMambaMixer): "
        "no per-unit rule for its x_proj_weight, dt_proj_weight"
    )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("_proj_weight" not in name)
    assert why(model) is None


def test_a_choice_of_experts_is_named() -> None:
    assert why(build(FAMILIES["Mixtral"])) == (
        "2 layers model.layers.*.mlp.gate (MixtralTopKRouter): "
        "its choice could be tipped by the rounding of a batch (topk)"
    )


def test_a_loss_that_selects_is_named_too() -> None:
    def selecting(model: nn.Module, input_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        losses = causal_lm_loss(model, input_ids, lengths)
        return losses * float(losses.detach().max() > -1)

    assert "(the loss)" in str(why(build(FAMILIES["Llama"]), selecting))


def test_adapters_go_to_linear_layers_and_to_nothing_that_routes() -> None:
    names = linear_layers(build(FAMILIES["Phi-3.5-MoE"]))
    assert {name.rpartition(".")[2] for name in names} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert "lm_head" not in linear_layers(build(FAMILIES["Llama"]))
    names = linear_layers(build(FAMILIES["DeepSeek-V3"]))
    assert not any("mlp" in name for name in names)  # `peft` would take them for the experts'
    assert any("self_attn" in name for name in names)
    assert not any("out_proj" in name for name in linear_layers(build(FAMILIES["Mamba"])))
