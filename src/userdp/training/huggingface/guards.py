"""What may not be done to a trainer besides its options: overridden losses, hooks, launchers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import transformers
from torch import nn
from transformers import Trainer

from userdp.errors import UseError
from userdp.gradients import trainable_parameters

_THEIRS = ("transformers.", "trl.", "userdp.")
_PLACES = (
    "_init_training_state",
    "_prepare_for_training",
    "_save_checkpoint",
    "get_batch_samples",
    "training_step",
)
"""Where the loop of `Trainer` is met; older versions have one long loop without such places."""
_COLLATORS = (
    "default_data_collator",
    "DataCollatorWithPadding",
    "DataCollatorForLanguageModeling",
    "DataCollatorForSeq2Seq",
)


def require_plain(kind: type, options: Mapping[str, Any]) -> None:
    """Refuse what would replace the private loss, or the model, behind the run's back."""
    if not all(hasattr(Trainer, name) for name in _PLACES):
        raise UseError(
            f"the Trainer of transformers {transformers.__version__} has another loop than the one "
            "that private steps fit into",
            hint="pip install 'userdp[trainer]'",
        )
    for name in ("compute_loss", "training_step"):
        owner = next(one for one in kind.__mro__ if name in one.__dict__)
        if not owner.__module__.startswith(_THEIRS):
            raise UseError(
                f"{owner.__name__} overrides {name}: the gradient of the private step is that of "
                "loss=, and this method would have no effect on it",
                hint="give a loss per row as loss=, see userdp.gradients.Loss",
            )
    for name in ("compute_loss_func", "model_init"):
        if options.get(name) is not None:
            raise UseError(
                f"{name} is refused here: the private run trains the model it was given, with a "
                "loss per row that couples no two users",
                hint="give model=, and a loss of your own as loss=",
            )
    collator = options.get("data_collator")
    name = getattr(collator, "__name__", type(collator).__name__)
    if collator is not None and (name not in _COLLATORS or getattr(collator, "mlm", False)):
        raise UseError(
            f"the data collator {name} is refused here: the private step builds its own rows from "
            "input_ids and labels, so that this collator would have no effect in training",
            hint="make input_ids and labels with dataset.map, and leave data_collator out",
        )


def require_plain_accelerator(accelerator: Any) -> None:
    """Refuse what `accelerate launch` or its configuration file asks for behind the arguments."""
    kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    plugin = getattr(accelerator.state, "dynamo_plugin", None)
    backend = getattr(plugin, "backend", "")
    dynamo = str(getattr(backend, "value", backend))
    found = {
        "several processes": kind != "NO",
        "fp16": accelerator.mixed_precision not in ("no", "bf16") or accelerator.scaler is not None,
        "gradient accumulation": accelerator.gradient_accumulation_steps != 1,
        "compiled code": dynamo not in ("", "NO"),
    }
    for what, there in found.items():
        if there:
            raise UseError(
                f"the configuration of accelerate asks for {what}, which is refused here",
                hint="start the script with python, or change `accelerate config`",
            )


def require_unwatched(model: nn.Module) -> None:
    """Refuse hooks that would see people's gradients before they are clipped."""
    for name, parameter in trainable_parameters(model).items():
        if parameter._backward_hooks:
            raise UseError(
                f"a hook is registered on the gradient of {name}: within a private step it would "
                "see people's gradients before they are clipped",
                hint="remove it; wandb.watch registers such hooks",
            )
