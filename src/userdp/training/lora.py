"""Low-rank adapters through `peft`, which is imported only when they are asked for."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from userdp import files
from userdp.claim.lineage import Lineage
from userdp.claim.weights import describe
from userdp.errors import UseError
from userdp.extras import library
from userdp.training.config import TrainConfig


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
        target_modules=list(config.lora_targets) or "all-linear",
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


def save_adapter(model: nn.Module, folder: Path, lineage: Lineage) -> None:
    """Write only the adapters, in `peft`'s layout, whole or not at all, and what they come from."""
    with files.whole_folder(folder) as temporary:
        # A method of peft's models, of which `nn.Module` tells the type checker nothing.
        model.save_pretrained(temporary)  # type: ignore[operator]
        (temporary / "README.md").unlink(missing_ok=True)
        _forget_local_base(temporary / "adapter_config.json")
        describe(temporary, lineage)


def _forget_local_base(path: Path) -> None:
    """Name the base only by a hub's name: a folder's name is of this machine, often of a person."""
    settings = files.read_json(path, what="an adapter's settings")
    name = settings.get("base_model_name_or_path")
    if name and (Path(name).is_absolute() or Path(name).exists()):
        files.write_json(path, {**settings, "base_model_name_or_path": None})
