"""A few families of `transformers`, and what is told of those that are not batched.

All of them were asked once: docs/results/engines.md.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from transformers.utils import logging

from tests.gradients.campaign import people
from tests.gradients.campaign.families import VOCABULARY, build
from tests.gradients.campaign.measure import biting_clip, influence
from tests.gradients.campaign.people import cohort
from tests.speed import fast_then_slow
from userdp.gradients import ClippedSum, Loss, Units, causal_lm_loss, clipped_sum, get_engine
from userdp.gradients.certificate.made_up import Shape, made_up
from userdp.gradients.engines.choice import why_alone
from userdp.gradients.engines.task import Task
from userdp.training.lora import linear_layers

logging.set_verbosity(60)  # it logs whole configurations

FEW: list[tuple[str, dict[str, Any], Loss, str]] = [
    ("mixtral", {}, people.judged, "reference"),
    ("llama", {"adapters": True}, people.judged, "certified"),
    ("mamba2", {}, people.judged, "certified"),
    ("gpt2", {"dropout": 0.1}, people.judged_in_bfloat16, "certified"),
]


@pytest.mark.parametrize(("name", "how", "loss", "way"), fast_then_slow(FEW, fast=2))
def test_invariant_3_one_user_moves_the_sum_of_a_family_by_at_most_the_clip_norm(
    name, how, loss, way
):
    model, units = build(name, **how), cohort()
    ask = {"micro_batch": people.MICRO_BATCH}
    clip = biting_clip(clipped_sum(model, loss, units, l2_clip_norm=1.0, **ask).norms)

    def clipped(some: Units) -> ClippedSum:
        return get_engine("auto")(model, loss, some, l2_clip_norm=clip, **ask)

    found = influence(clipped, units, clip=clip, out=people.OUT, vocabulary=VOCABULARY)
    assert found.way == way
    assert 0.9 < found.ratio <= 1


def test_made_up_tokens_are_such_as_the_model_predicts() -> None:
    """Moshi's table holds one token more, which begins a row: a loss would look for it in vain."""
    model = build("moshi")
    units = made_up(model, Shape((2, 2), (6, 4, 4, 6)), masked=False)
    assert int(units.input_ids.max()) < model.config.vocab_size
    assert model.get_input_embeddings().num_embeddings > model.config.vocab_size


def why(model: nn.Module, loss: Loss = causal_lm_loss) -> str | None:
    return why_alone(Task(model=model, loss=loss, units=cohort(), l2_clip_norm=1.0))


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
