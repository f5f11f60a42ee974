"""A few families of the influence campaign, and what is told of those that are not batched.

All of them: `make influence` (docs/results/engines.md).
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers.utils import logging

from tests.gradients.campaign.families import FAMILIES, build
from tests.gradients.campaign.jobs import Job, answered, wrong
from tests.gradients.campaign.people import cohort
from tests.speed import fast_then_slow
from userdp.gradients import Loss, causal_lm_loss
from userdp.gradients.certificate.made_up import Shape, made_up
from userdp.gradients.engines.choice import why_alone
from userdp.gradients.engines.task import Task
from userdp.training.lora import linear_layers

logging.set_verbosity(60)  # it logs whole configurations

FEW = [
    ("families, full", "mixtral", "reference"),
    ("families, LoRA", "llama", "certified"),
    ("families, full", "mamba2", "certified"),
    ("families, full, bfloat16 and dropout", "gpt2", "certified"),
]


@pytest.mark.parametrize(("kind", "name", "way"), fast_then_slow(FEW, fast=2))
def test_invariant_3_one_user_moves_the_sum_of_a_family_by_at_most_the_clip_norm(
    kind: str, name: str, way: str
) -> None:
    row = answered(Job(kind, "auto", name))
    assert not wrong(row), row
    assert row["way"] == way
    assert 0.9 < row["ratio"] <= 1


def test_made_up_tokens_are_such_as_the_model_predicts() -> None:
    """Moshi's table holds one token more, which begins a row: a loss would look for it in vain."""
    model = build("moshi")
    units = made_up(model, Shape((2, 2), (6, 4, 4, 6)), masked=False)
    assert int(units.input_ids.max()) < model.config.vocab_size
    assert model.get_input_embeddings().num_embeddings > model.config.vocab_size


def test_there_are_families_enough() -> None:
    assert len(FAMILIES) >= 120


def why(model: nn.Module, loss: Loss = causal_lm_loss) -> str | None:
    return why_alone(Task(model=model, loss=loss, units=cohort(), l2_clip_norm=1.0))


def test_a_weight_that_rows_share_is_named_where_nothing_covers_it() -> None:
    model = build("zamba")
    assert why(model) == (
        "6 layers model.layers.*.mamba, model.layers.*.mamba_decoder.mamba (ZambaMambaMixer): "
        "no per-unit rule for its x_proj_weight, dt_proj_weight"
    )
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("_proj_weight" not in name)
    assert why(model) is None


def test_a_choice_of_experts_is_named() -> None:
    assert why(build("mixtral")) == (
        "2 layers model.layers.*.mlp.gate (MixtralTopKRouter): "
        "its choice could be tipped by the rounding of a batch (topk)"
    )


def test_a_loss_that_selects_is_named_too() -> None:
    def selecting(model: nn.Module, input_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        losses = causal_lm_loss(model, input_ids, lengths)
        return losses * float(losses.detach().max() > -1)

    assert "(the loss)" in str(why(build("llama"), selecting))


def test_adapters_go_to_linear_layers_and_to_nothing_that_routes() -> None:
    names = linear_layers(build("phimoe"))
    assert {name.rpartition(".")[2] for name in names} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert "lm_head" not in linear_layers(build("llama"))
    names = linear_layers(build("deepseek_v3"))
    assert not any("mlp" in name for name in names)  # `peft` would take them for the experts'
    assert any("self_attn" in name for name in names)
    assert not any("out_proj" in name for name in linear_layers(build("mamba")))
