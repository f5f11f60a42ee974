"""The models of a federation, built alike in every silo, and their losses per item."""

from __future__ import annotations

from functools import singledispatch

import numpy as np
import torch
from torch import nn

from userdp.core.errors import UseError
from userdp.federated.federation_plan import LanguageModel, ModelSpec
from userdp.federated.rounds import Weights, misfits
from userdp.gradients import Loss, causal_lm_loss, trainable_parameters
from userdp.training.causal_models import NEW, new_model, read_model
from userdp.training.config import TrainConfig
from userdp.training.lora import add_adapters


@singledispatch
def build_model(spec: ModelSpec) -> tuple[nn.Module, Loss]:
    """The model and its loss; equal specs give equal public initial weights.

    A new kind of `ModelSpec` registers here what it builds.

    Raises:
        UseError: a language model cannot be loaded.
    """
    raise NotImplementedError(spec.kind)


@build_model.register
def _(spec: LanguageModel) -> tuple[nn.Module, Loss]:
    config = TrainConfig(
        model=spec.model,
        layers=spec.layers,
        width=spec.width,
        heads=spec.heads,
        lora_rank=spec.lora_rank,
        seed=spec.seed,
    )
    if spec.model == NEW:
        model = new_model(config, vocab_size=spec.vocab_size, seq_len=spec.seq_len)
    else:
        model = read_model(spec.model)
    return add_adapters(model, config).train(), causal_lm_loss


def weights_of(model: nn.Module) -> Weights:
    """The trainable parameters as float32 arrays, by name; a federation exchanges nothing else."""
    return {
        name: parameter.detach().to("cpu", torch.float32).numpy().copy()
        for name, parameter in trainable_parameters(model).items()
    }


def put_weights(model: nn.Module, weights: Weights) -> None:
    """Set the trainable parameters.

    Raises:
        UseError: names, shapes or dtypes are another model's, or a number is not finite.
    """
    parameters = trainable_parameters(model)
    if off := misfits(weights, {name: tuple(p.shape) for name, p in parameters.items()}):
        raise UseError(
            f"the weights are another model's: they differ in {', '.join(off[:5])}",
            hint="every silo and the server need the same federation plan and the same base model",
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(weights[name])))
