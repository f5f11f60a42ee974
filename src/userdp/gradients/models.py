"""What a model must be so that one unit's gradient depends on no other unit."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from userdp.core.errors import UseError


def trainable_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that require a gradient, each tensor once (tied ones by their first name).

    Raises:
        UseError: nothing is trainable, or a parameter is not a real floating-point tensor.
    """
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not parameters:
        raise UseError(
            "the model has no trainable parameter: epsilon would be spent and nothing would learn",
            hint="set requires_grad on what should train, or check how the adapters were attached",
        )
    for name, parameter in parameters.items():
        if not parameter.is_floating_point():
            raise UseError(
                f"parameter {name} is {parameter.dtype}; only real floats can be clipped"
            )
    return parameters


def require_uncoupled(model: nn.Module) -> None:
    """Refuse a model in which one unit's gradient would depend on another unit's data.

    Refused: BatchNorm and SyncBatchNorm (batch statistics, and running statistics that leave the
    step without noise), InstanceNorm with running statistics, embeddings with ``max_norm`` (they
    write to their table), layers of eight bits (LLM.int8 looks at all rows together), and hooks of
    parameters.

    Dropout in training mode is allowed: its masks are secret and independent of the cohort, so the
    bound holds for every outcome of the masks, and therefore on average over them
    (`userdp.gradients.model_randomness`). Refused are random numbers that engines cannot reach or
    repeat: a generator that a module holds; a recurrent layer on CUDA with dropout, whose masks
    cuDNN draws from a state that it keeps from call to call; activation checkpointing with
    ``preserve_rng_state=False``.

    Raises:
        UseError: names the module and the reason.
    """
    for name, module in model.named_modules():
        reason, hint = _coupling(module) or _own_randomness(module) or (None, "")
        if reason:
            where = f"module {name or 'model'} ({type(module).__name__})"
            raise UseError(f"{where} {reason}", hint=hint)
    for name, parameter in model.named_parameters():
        if _parameter_hooks(parameter):
            raise UseError(
                f"parameter {name} has a hook (Tensor.register_hook, or wandb.watch): it would be "
                "told gradients of single users, without clip and noise",
                hint="remove the hook; after a step, .grad holds the noisy gradient",
            )


def _coupling(module: nn.Module) -> tuple[str, str] | None:
    """Why a module's answer for one row would depend on others, and the way out."""
    held, kind = vars(module), type(module)
    if isinstance(module, _BatchNorm) or (
        isinstance(module, _NormBase) and module.track_running_stats
    ):
        return (
            "computes statistics over the batch, so one user's gradient would depend on other "
            "users' data",
            "use LayerNorm, RMSNorm or GroupNorm",
        )
    if held.get("max_norm") is not None:
        return (
            "renormalises the rows that somebody's tokens look up (max_norm), in place and without "
            "noise",
            "leave max_norm out",
        )
    bits = kind.__name__ if kind.__module__.startswith("bitsandbytes.") else ""
    if bits == "Linear8bitLt":
        return (
            "looks for outlying columns in all rows of a pass, and keeps what it found: one user's "
            "gradient would depend on another's data",
            "load the frozen base in four bits: BitsAndBytesConfig(load_in_4bit=True)",
        )
    if bits == "Linear4bit" and held.get("support_avx512bf16_for_cpu") and not _on_cuda(module):
        return (
            "packs its weights for a kernel of bfloat16 whenever it is evaluated, and passes no "
            "gradient on from then on",
            "for each such module, set module.support_avx512bf16_for_cpu = False before",
        )
    return None


def _on_cuda(module: nn.Module) -> bool:
    return any(parameter.is_cuda for parameter in module.parameters(recurse=False))


_GENERATORS: Final = (
    torch.Generator,
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    random.Random,
)


def _own_randomness(module: nn.Module) -> tuple[str, str] | None:
    """Why a module's random numbers are out of reach, and the way out."""
    held = vars(module)
    if any(isinstance(value, _GENERATORS) for value in held.values()):
        return (
            "holds a random number generator of its own: what it draws for one user depends on how "
            "much it drew for others",
            "draw from torch's default generator, as torch.nn.functional.dropout does",
        )
    between_layers = isinstance(module, nn.RNNBase) and module.training and module.dropout > 0
    if between_layers and _on_cuda(module):
        return (
            "has dropout that cuDNN draws from a state of its own",
            "set its dropout to 0, or put torch.nn.Dropout between layers",
        )
    options: Mapping[str, Any] = getattr(held.get("_gradient_checkpointing_func"), "keywords", {})
    if not options.get("preserve_rng_state", True):
        return (
            "checkpoints activations with preserve_rng_state=False: the backward pass would see "
            "other dropout masks than the forward pass",
            "leave preserve_rng_state out",
        )
    return None


_HOOKS: Final = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
"""Where modules keep functions that run in a pass. Those of a state dict run in none."""

_NOBODYS: Final = ("userdp.", "torch.distributed.")
"""The engines' hooks, which come and go within a pass, and those that gather a sharded model's
parameters, whose state is those parameters."""


def hook_numbers(model: nn.Module) -> tuple[int, ...]:
    """torch's numbers of all functions that somebody hung into a pass over ``model``.

    Those of its modules, of its parameters (`Tensor.register_hook`), and of all modules there are.
    No other hook of the process ever has the same number.
    """
    held = [vars(torch_module)[f"_global{kind}"] for kind in _HOOKS]
    held += [vars(module)[kind] for module in model.modules() for kind in _HOOKS]
    numbers = [number for each in held for number, hook in each.items() if not _is_nobodys(hook)]
    return *numbers, *(n for p in model.parameters() for n in _parameter_hooks(p))


def _parameter_hooks(parameter: nn.Parameter) -> list[int]:
    held = (parameter._backward_hooks, parameter._post_accumulate_grad_hooks)
    return [n for each in held if each for n, hook in each.items() if not _is_nobodys(hook)]


def _is_nobodys(hook: Any) -> bool:
    return (getattr(hook, "__module__", None) or "").startswith(_NOBODYS)
