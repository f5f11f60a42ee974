"""Low-rank adapters through `peft`, which is imported only when they are asked for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from userdp import files
from userdp.claims.lineage import Lineage
from userdp.claims.weights import describe
from userdp.errors import UseError, in_short
from userdp.extras import library
from userdp.out_of_memory import ran_out_of_memory
from userdp.training.config import TrainConfig
from userdp.training.published import require_settled, tidy


def add_adapters(model: nn.Module, config: TrainConfig) -> nn.Module:
    """``model`` with adapters as its only trainable parameters; as it is without a rank.

    Build the optimizer after this: wrapped layers hold new tensors (pitfall 9).

    Raises:
        UseError: `peft` is not installed, or no module has one of the names in ``lora_targets``.
    """
    if config.lora_rank is None:
        return model
    peft = library("peft", extra="lora", what="--lora-rank")
    alpha = config.lora_alpha if config.lora_alpha is not None else 2 * config.lora_rank
    settings = peft.LoraConfig(
        r=config.lora_rank,
        lora_alpha=alpha,
        target_modules=list(config.lora_targets) or linear_layers(model),
        lora_dropout=config.dropout,
        bias="none",
        task_type="CAUSAL_LM",
        # GPT-2 stores its linear layers transposed.
        fan_in_fan_out=any(type(module).__name__ == "Conv1D" for module in model.modules()),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        try:
            wrapped: nn.Module = peft.get_peft_model(model, settings)
        except ValueError as error:
            raise UseError(
                f"cannot attach adapters: {str(error).splitlines()[0]}",
                hint="name modules of this model in --lora-targets",
            ) from error
    return wrapped.train()


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapters:
    """What a model of `peft` holds beside its base.

    Args:
        name: of the adapters.
        prefix: of the names of their tensors.
    """

    name: str
    prefix: str

    def holds_base(self, tensor: str) -> bool:
        """Whether a tensor of that name is one of the base model's."""
        parts = tensor.split(".")
        return "modules_to_save" not in parts and not any(
            part.startswith((self.prefix, "trainable_tokens_")) for part in parts
        )


def adapters_of(model: nn.Module) -> Adapters:
    """The adapters of a model of `peft`; those that train, where it has several."""
    adapted: Any = model
    prefix = str(getattr(adapted.base_model, "prefix", "prompt_encoder"))
    return Adapters(name=str(adapted.active_adapter), prefix=prefix)


def are_fresh(model: nn.Module, adapters: Adapters) -> bool:
    """Whether the adapters of a model of `peft` are new: LoRA's, before their first step.

    A layer adds a product of matrices, and `peft` begins with one of them at zero. A product with a
    factor of zero has no gradient for its other factors, so the first step of any optimizer moves
    the zero. While it is there, no step was taken, and the rest is what the initialisation wrote,
    which reads no data (`data_of_adapters`). A statistic of people's text that somebody wrote into
    the other factor by hand is not noticed here.

    Returns:
        False too of adapters of other kinds, of which this cannot be seen.
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
        elif not (mark or adapters.holds_base(name)):
            return False
    return bool(zero) and all(zero.values())


def data_of_adapters(model: nn.Module) -> str:
    """The initialisations of a model's adapters that read data or may have; empty without any."""
    adapted: Any = model
    told = set()
    for settings in adapted.peft_config.values():
        told |= {name for field, name in _READ_DATA.items() if getattr(settings, field, None)}
        how = getattr(settings, "init_lora_weights", True)
        if isinstance(how, str) and how.partition("_niter_")[0].lower() not in _READ_NONE:
            told.add(_READ_DATA.get(f"{how}_config", how))
    return ", ".join(sorted(told))


_FACTORS = ("A.", "B.", "E.", "embedding_A.", "embedding_B.")
_READ_DATA = {
    "eva_config": "EVA",
    "corda_config": "CorDA",
    "lora_ga_config": "LoRA-GA",
    "cpt_token_ids": "CPT",
}
"""Fields of `peft`'s settings, and the initialisations from data that they belong to."""
_READ_NONE = {"gaussian", "loftq", "mica", "olora", "orthogonal", "pissa"}
"""Initialisations by name that read the base's weights at most; a later `peft` may know others."""


def attach_like(model: nn.Module, folder: Path, *, name: str) -> nn.Module:
    """``model`` with new adapters under ``name``, of the kind of those that ``folder`` holds.

    Raises:
        UseError: `peft` is not installed, or the adapters do not fit.
    """
    peft = library("peft", extra="lora", what="adapters")
    try:
        settings = peft.PeftConfig.from_pretrained(str(folder))
        settings.inference_mode = False
        attached: nn.Module = peft.get_peft_model(model, settings, adapter_name=name)
    # Of a damaged folder the library raises what its parts do; no list of it is documented.
    except Exception as error:
        if ran_out_of_memory(error):  # nothing is wrong with the folder
            raise
        raise UseError(
            f"cannot attach adapters like those in {folder}: {in_short(error)}"
        ) from error
    return attached


_LINEAR = ("Conv1D", "Linear8bitLt", "Linear4bit")
"""Linear layers that are no `nn.Linear`: GPT-2's, and those of `bitsandbytes`."""

_KERNELS_READ = {"out_proj", "conv1d"}
"""Layers of Mamba whose weights a kernel reads itself, past the adapter; `peft` refuses these."""

_TAKEN_FOR_EXPERTS = {"gate_proj", "up_proj", "down_proj", "w1", "w2", "w3"}
"""Where a model keeps all experts' weights in one tensor, `peft` takes these names for the experts'
and forms their adapters by writing to the weights in each pass, which is refused."""

_KERNELS_OF = {"falcon_h1", "mamba", "mamba2", "falcon_mamba", "nemotron_h"}


def linear_layers(model: nn.Module) -> list[str]:
    """The names of the linear layers that get an adapter where none are named: all but the head.

    `peft`'s own "all-linear" takes the routers and the three-dimensional weights of experts too,
    which its adapters then form in full in each pass, and the layers that it itself refuses.

    Raises:
        UseError: there is none.
    """
    head: object = getattr(model, "get_output_embeddings", lambda: None)()
    model_type = getattr(getattr(model, "config", None), "model_type", None)
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
        raise UseError(
            "the model has no linear layer to which an adapter could be attached",
            hint="name modules of this model in --lora-targets",
        )
    return names


def save_adapter(
    model: nn.Module,
    folder: Path,
    lineage: Lineage,
    *,
    only: str | None = None,
    own_tokenizer: Any = None,
) -> str:
    """Write only the adapters, in `peft`'s layout, whole or not at all, and what they come from.

    Args:
        model: of `peft`.
        folder: to be made, or replaced.
        lineage: what the adapters descend from.
        only: the digest that they must have, if no others may be written.
        own_tokenizer: one of `transformers`, whose files are written beside them.

    Returns:
        Their digest.
    """
    with files.whole_folder(folder) as temporary:
        # A method of peft's models, of which `nn.Module` tells the type checker nothing.
        model.save_pretrained(temporary)  # type: ignore[operator]
        (temporary / "README.md").unlink(missing_ok=True)
        _forget_local_base(temporary / "adapter_config.json")
        if own_tokenizer is not None:
            own_tokenizer.save_pretrained(temporary)
        tidy(temporary)
        digest = describe(temporary, lineage)
        require_settled(digest, only, folder)
    return digest


def _forget_local_base(path: Path) -> None:
    """Name the base only by a hub's name: a folder's name is of this machine, often of a person."""
    settings = files.read_json(path, what="an adapter's settings")
    name = settings.get("base_model_name_or_path")
    if name and (Path(name).is_absolute() or Path(name).exists()):
        files.write_json(path, {**settings, "base_model_name_or_path": None})
