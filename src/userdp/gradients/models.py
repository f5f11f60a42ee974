"""What a model must be so that one unit's gradient depends on no other unit."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from userdp.errors import UseError
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
    router's balance loss, embeddings with ``max_norm`` (they write to their table), rotary
    embeddings whose frequencies adapt to the longest input so far, and layers of eight bits
    (LLM.int8 looks at all rows together).

    Dropout in training mode is allowed: its masks are secret and independent of the cohort, so the
    bound holds for every outcome of the masks, and therefore on average over them
    (`userdp.gradients.model_randomness`). Refused are random numbers that engines cannot reach or
    repeat, see `require_reachable_randomness` there.

    Raises:
        UseError: names the module and the reason.
    """
    require_reachable_randomness(model)
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
        if "dynamic" in _rope_types(config):
            raise UseError(
                f"module {name or 'model'} has dynamic rotary embeddings: they change with the "
                "longest input seen so far, so one user's gradient would depend on another's",
                hint="use rope type 'default', 'linear' or 'yarn'",
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


def _rope_types(config: object) -> set[object]:
    """Every kind of rotary embedding that a configuration names; some name one for each layer."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)
    if not isinstance(rope, dict):
        return set()
    each = [rope, *(part for part in rope.values() if isinstance(part, dict))]
    return {part.get("rope_type", part.get("type")) for part in each}
