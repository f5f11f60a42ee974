"""What a model must be so that one unit's gradient depends on no other unit."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from userdp.errors import UseError
from userdp.gradients.hooks import hooks_of
from userdp.gradients.model_randomness import attribute, require_reachable_randomness


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
    step without noise), InstanceNorm with running statistics, a mixture of experts that returns its
    router's balance loss, embeddings with ``max_norm`` (they write to their table), hooks of
    trainable parameters, and layers of eight bits (LLM.int8 looks at all rows together).

    Dropout in training mode is allowed: its masks are secret and independent of the cohort, so the
    bound holds for every outcome of the masks, and therefore on average over them
    (`userdp.gradients.model_randomness`). Refused are random numbers that engines cannot reach or
    repeat, see `require_reachable_randomness` there.

    Raises:
        UseError: names the module and the reason.
    """
    require_reachable_randomness(model)
    _require_no_hooks(model)
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm) or (
            isinstance(module, _NormBase) and module.track_running_stats
        ):
            raise UseError(
                f"module {name or 'model'} ({type(module).__name__}) computes statistics over the "
                "batch, so one user's gradient would depend on other users' data",
                hint="use LayerNorm, RMSNorm or GroupNorm",
            )
        if attribute(module, "max_norm") is not None:
            raise UseError(
                f"module {name or 'model'} ({type(module).__name__}) renormalises the rows that "
                "somebody's tokens look up (max_norm), in place and without noise",
                hint="leave max_norm out",
            )
        if type(module).__module__.startswith("bitsandbytes."):
            _require_plain_bits(name, module)
        config = attribute(module, "config")
        if getattr(config, "output_router_logits", False):
            raise UseError(
                f"module {name or 'model'} returns its router's load-balancing loss, which couples "
                "the users of a batch",
                hint="set output_router_logits=False in the model's config",
            )


def _require_no_hooks(model: nn.Module) -> None:
    """Refuse hooks of parameters: they would be told gradients before they are clipped.

    Such as those of `wandb.watch`, which log them.
    """
    for hook in hooks_of(model):
        if hook.where.startswith("parameter "):
            raise UseError(
                f"{hook.where} has a hook (Tensor.register_hook, or wandb.watch): it would be told "
                "gradients of single users, without clip and noise",
                hint="remove the hook; after a step, .grad holds the noisy gradient",
            )


def _require_plain_bits(name: str, module: nn.Module) -> None:
    """Refuse layers of few bits that look at a whole batch, or that change when they are asked."""
    kind = type(module).__name__
    if kind == "Linear8bitLt":
        raise UseError(
            f"module {name} ({kind}) looks for outlying columns in all rows of a pass, and keeps "
            "what it found: one user's gradient would depend on another's data",
            hint="load the frozen base in four bits: BitsAndBytesConfig(load_in_4bit=True)",
        )
    on_cpu = all(p.device.type == "cpu" for p in module.parameters(recurse=False))
    if kind == "Linear4bit" and on_cpu and getattr(module, "support_avx512bf16_for_cpu", False):
        raise UseError(
            f"module {name} ({kind}) packs its weights for a kernel of bfloat16 whenever it is "
            "evaluated, and passes no gradient on from then on",
            hint="for each such module, set module.support_avx512bf16_for_cpu = False before",
        )
