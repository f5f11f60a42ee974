"""A model of a configuration with fewer layers, of full width: by which its size is known."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import torch
import transformers
from torch import nn

from userdp.errors import UseError, in_short
from userdp.training.config import TrainConfig
from userdp.training.lora import add_adapters
from userdp.training.models import NEW, new_model, resolve


def models_by_depth(
    config: TrainConfig, *, vocab_size: int, seq_len: int
) -> tuple[Callable[[int], nn.Module], int]:
    """What builds the model of ``config`` with so many layers, and how many it has itself.

    Weights are random: shapes decide what a step costs. The adapters of ``config`` are attached.

    Args:
        config: the model and its adapters.
        vocab_size: of the store, for a new model.
        seq_len: likewise.

    Raises:
        UseError: there is no such model, or its configuration names no number of layers.
    """
    if config.model == NEW:

        def new(layers: int) -> nn.Module:
            shallow = replace(config, layers=layers)
            model = new_model(shallow, vocab_size=vocab_size, seq_len=seq_len)
            return add_adapters(model, config).train()

        return new, config.layers
    shape = _shape(config.model)
    depth = getattr(shape, "num_hidden_layers", None)
    if not isinstance(depth, int) or depth < 1:
        raise UseError(
            f"the configuration of {config.model!r} names no number of layers",
            hint="leave --hardware out: the plan itself needs no prediction",
        )

    def build(layers: int) -> nn.Module:
        shallow = _of_depth(shape, layers)
        # In float32, as training reads it, whatever the folder holds.
        model = transformers.AutoModelForCausalLM.from_config(shallow, dtype=torch.float32)
        return add_adapters(model, config).train()

    return build, depth


def _shape(name: str) -> transformers.PretrainedConfig:
    try:
        return transformers.AutoConfig.from_pretrained(resolve(name), trust_remote_code=False)
    # Of a damaged folder the libraries raise what their parts do; no list of it is documented.
    except Exception as error:
        raise UseError(
            f"cannot read the configuration of {name!r}: {in_short(error)}",
            hint="give a folder with config.json, 'bundled', or 'new'",
        ) from error


def _of_depth(shape: transformers.PretrainedConfig, layers: int) -> transformers.PretrainedConfig:
    """The configuration with its first ``layers`` layers; what is listed by layer is cut too."""
    shallow, depth = copy.deepcopy(shape), shape.num_hidden_layers
    for name, value in shape.to_dict().items():
        if isinstance(value, list) and len(value) == depth and depth > 1:
            setattr(shallow, name, value[:layers])
    shallow.num_hidden_layers = layers
    return shallow
