"""What of a model trains: adapters of `peft`, imported only if asked for, or its own weights."""

from __future__ import annotations

import re
import sys
from typing import Any
from warnings import catch_warnings

import torch
from torch import nn

from userdp.core.environment import library
from userdp.core.errors import UseError, in_short
from userdp.training.config import TrainConfig


def choose_trained(model: nn.Module, config: TrainConfig) -> nn.Module:
    """``model`` with the parameters that train: adapters alone, or without a rank its weights.

    Of these `freeze` leaves some still in a pre-trained model, unless all are to train.

    Build the optimizer after this: wrapped layers hold new tensors (pitfall 9).

    Raises:
        UseError: `peft` is not installed, or no module has one of the names in ``lora_targets``.
    """
    if config.lora_rank is None:
        if not (config.train_all or config.model == "new"):
            freeze(model)
        return model
    peft = library("peft", extra="lora", what="--lora-rank")
    settings = peft.LoraConfig(
        r=config.lora_rank,
        lora_alpha=config.lora_alpha or 2 * config.lora_rank,
        target_modules=list(config.lora_targets) or linear_layers(model),
        lora_dropout=config.dropout,
        bias="none",
        task_type="CAUSAL_LM",
        # GPT-2 stores its linear layers transposed.
        fan_in_fan_out=any(type(module).__name__ == "Conv1D" for module in model.modules()),
    )
    # `peft` asks models of `transformers` for what these call by another name by now.
    with torch.random.fork_rng(devices=[]), catch_warnings(action="ignore", category=FutureWarning):
        torch.manual_seed(config.seed)
        try:
            wrapped: nn.Module = peft.get_peft_model(model, settings)
        except ValueError as error:
            raise UseError(f"cannot attach adapters: {in_short(error)}", hint=_NAME) from error
    return wrapped.train()


_ATTENTION = re.compile(
    r".*att.*\.([cq]_attn|qkv_proj|query_key_value|Wqkv|[qkv]_proj|(q|kv)_[ab]_proj\w*|query|key|value)"
)
_PLACES = re.compile(r"(.*\.)?(wpe|\w*position\w*)")
"""As models of `transformers` name the layers that make queries, keys and values, and embeddings of
positions."""


def freeze(model: nn.Module) -> None:
    """Leave position embeddings, and what makes queries, keys and values, still.

    All gradients of a person share one clip norm, and the noise is as large for a weight that has
    little to learn as for one that has much. Position embeddings take an eighth of the squared norm
    of a person's gradient, queries, keys and values a quarter. Left still they take no noise, and
    leave their share to the others. That gains on all public texts that were tried, at every size
    of noise (``docs/results/recipe.md``). It is public: it hangs on names of modules alone. Layers
    with names that are not known here learn.
    """
    for name, module in model.named_modules():
        of_places = isinstance(module, nn.Embedding) and _PLACES.fullmatch(name)
        if of_places or _ATTENTION.fullmatch(name):
            module.requires_grad_(False)


def is_adapted(model: nn.Module) -> bool:
    """Whether a model has adapters of `peft`, without importing `peft`."""
    peft: Any = sys.modules.get("peft")
    return peft is not None and isinstance(model, peft.PeftModel)


def require_known_adapters(model: nn.Module) -> None:
    """`UseError` of adapters that `transformers` itself would save, without their base."""
    if getattr(uncompiled(model), "_hf_peft_config_loaded", False):
        raise UseError(
            "adapters that model.add_adapter() added are saved as no model that a run releases",
            hint="add them by peft.get_peft_model(model, config)",
        )


def uncompiled(model: nn.Module) -> nn.Module:
    """The module that `torch.compile` wrapped; the module itself otherwise."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.Module) else model


def is_of_base(model: nn.Module, tensor: str) -> bool:
    """Whether a tensor of that name belongs to the base of a model of `peft`."""
    adapted: Any = model
    own = str(getattr(adapted.base_model, "prefix", "prompt_encoder"))
    parts = tensor.split(".")
    return "modules_to_save" not in parts and not any(
        part.startswith((own, "trainable_tokens_")) for part in parts
    )


def are_fresh(model: nn.Module) -> bool:
    """Whether the adapters of a model of `peft` are new: LoRA's, before their first step.

    An adapted layer adds a product of matrices, and `peft` begins with one factor at zero. Then the
    other factors have no gradient, so that the first step of any optimizer moves this one. While it
    is still zero no step was taken, and the rest is what the initialisation wrote, which reads no
    data (`data_of_adapters`).

    Returns:
        False also for adapters of other kinds, which do not show it.
    """
    zero: dict[tuple[str, str], bool] = {}  # of a layer and the name of an adapter
    tensors = model.state_dict()
    for name, tensor in tensors.items():
        layer, mark, rest = name.partition(".lora_")
        if mark and rest.startswith(_FACTORS) and not rest.endswith(".bias"):
            product = layer, rest.split(".")[1]
            zero[product] = zero.get(product, False) or not tensor.any()
        elif "modules_to_save" in name.split("."):
            before = re.sub(r"\.modules_to_save\.[^.]+\.", ".original_module.", name)
            if before not in tensors or not torch.equal(tensor, tensors[before]):
                return False
        elif not (mark or is_of_base(model, name)):
            return False
    return bool(zero) and all(zero.values())


def data_of_adapters(model: nn.Module) -> str:
    """The initialisations of a model's adapters that may have read data; empty if there is none."""
    adapted: Any = model
    named = {getattr(one, "init_lora_weights", True) for one in adapted.peft_config.values()}
    by_name = sorted(how for how in named if isinstance(how, str))
    return ", ".join(
        how for how in by_name if how.partition("_niter_")[0].lower() not in _READ_NO_DATA
    )


_FACTORS = ("A.", "B.", "E.", "embedding_A.", "embedding_B.")
_READ_NO_DATA = {"gaussian", "loftq", "mica", "olora", "orthogonal", "pissa"}
"""Initialisations by name that read the base's weights at most; a later `peft` may know others."""

_NAME = "name modules of this model in learning.lora_targets"

_LINEAR = ("Conv1D", "Linear8bitLt", "Linear4bit")
"""Linear layers that are no `nn.Linear`: GPT-2's, and those of `bitsandbytes`."""

_KERNELS_READ = {"out_proj", "conv1d"}
"""Layers of Mamba whose weights a kernel reads itself, past the adapter; `peft` refuses these."""

_KERNELS_OF = {"falcon_h1", "mamba", "mamba2", "falcon_mamba", "nemotron_h"}

_TAKEN_FOR_EXPERTS = {"gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"}
"""Where a model keeps all experts' weights in one tensor, `peft` takes these names for the experts'
and forms their adapters by writing to the weights in each pass, which is refused."""


def linear_layers(model: nn.Module) -> list[str]:
    """The names of the linear layers that get an adapter where none are named: all but the head.

    `peft`'s own "all-linear" takes the routers and the three-dimensional weights of experts too,
    which its adapters then form in full in each pass, and the layers that it itself refuses.

    Raises:
        UseError: there is none.
    """
    known: Any = model
    head, model_type = known.get_output_embeddings(), known.config.model_type
    left_out = _KERNELS_READ if model_type in _KERNELS_OF else set()
    if any(p.dim() == 3 and "experts" in name for name, p in model.named_parameters()):
        left_out = left_out | _TAKEN_FOR_EXPERTS
    names = [
        name
        for name, module in model.named_modules()
        # A router may be an nn.Linear that answers with more than a tensor.
        if (isinstance(module, nn.Linear) or type(module).__name__ in _LINEAR)
        and not type(module).__name__.endswith("Router")
        and module is not head
        and name.rpartition(".")[2] not in left_out
    ]
    if not names:
        raise UseError("the model has no linear layer for an adapter", hint=_NAME)
    return names
