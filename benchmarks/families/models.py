"""Tiny models of many families, each built by `transformers` from a configuration.

A configuration keeps whatever makes its family's code special: tied tables, norms of queries and
keys, soft caps, shared layers, several kinds of layers, experts, states. Only sizes are small.
"""

from __future__ import annotations

import peft
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.families.attention import attention_families
from benchmarks.families.experts import expert_families
from benchmarks.families.sizes import Family, Sizes
from benchmarks.families.states import state_families
from userdp.training.lora import linear_layers


def families(*, width: int = 16, vocabulary: int = 61, positions: int = 64) -> dict[str, Family]:
    """The families by name, at sizes that follow from ``width``, a multiple of 16."""
    sizes = Sizes(width=width, vocabulary=vocabulary, positions=positions)
    return {**attention_families(sizes), **expert_families(sizes), **state_families(sizes)}


FAMILIES = families()


def build(family: Family, *, adapters: bool = False, seed: int = 7) -> nn.Module:
    """The model, float32, in evaluation mode, at weights that are not those of a beginning.

    Fresh models have zeros for biases and ones for norms; a wrong rule could hide behind these.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = AutoConfig.for_model(family.model_type, **family.config)
        model: nn.Module = AutoModelForCausalLM.from_config(config).float().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        if adapters:
            model = _with_adapters(model)
    return model


def _with_adapters(model: nn.Module) -> nn.Module:
    settings = peft.LoraConfig(
        r=2,
        target_modules=linear_layers(model),
        task_type="CAUSAL_LM",
        fan_in_fan_out=any(type(module).__name__ == "Conv1D" for module in model.modules()),
    )
    wrapped: nn.Module = peft.get_peft_model(model, settings)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if "lora_B" in name:  # they begin as zeros, and half of the gradients with them
                parameter.normal_(std=0.1)
    return wrapped.eval()
