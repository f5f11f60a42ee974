"""Settings of the trainers that a private run refuses: one table. And the two that it sets.

docs/huggingface.md shows the same table, and a test compares the two. Nothing has been prepared or
charged when a setting is refused. A setting that is not in the table works as always, or has no
effect on a private step; the page says which.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from userdp.core.errors import UseError
from userdp.plans import Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Settings that a private run takes only if they are off, or have one of few other values.

    Args:
        names: of fields of `transformers.TrainingArguments` or `trl.SFTConfig`, of arguments and
            methods of the trainer, or of environment variables.
        taken: the values that are taken besides off (None, False, 0, empty, "no"); for objects,
            the names of their classes or functions.
        why: the effect that any other value would have.
        instead: the way out.
    """

    names: tuple[str, ...]
    taken: tuple[str | int, ...] = ()
    why: str
    instead: str

    def takes(self, value: Any) -> bool:
        """Whether a private run takes ``value`` as it is."""
        if not isinstance(value, str | int | float):
            value = value and getattr(value, "__name__", type(value).__name__)
        return not value or value == "no" or value in self.taken

    def refusal(self, name: str) -> UseError:
        """The error that refuses the setting ``name``."""
        return UseError(f"{name} is refused here: {self.why}", hint=self.instead)


EVALUATION = Setting(
    names=("eval_strategy", "eval_on_start"),
    why="exact losses of people's text would choose what is released, or when training stops",
    instead="say public_eval=True if eval_dataset is nobody's private text; else call "
    "trainer.evaluate() after training, which notes a look in the store's ledger",
)
"""Taken only if the evaluation data is declared public."""

PUSH = Setting(
    names=("push_to_hub",),
    why="it uploads the output folder, in which checkpoints and the operator's files lie too",
    instead="upload OUTPUT_DIR/model: huggingface_hub.upload_folder(folder_path=…)",
)

_LOSS = ("compute_loss", "compute_loss_func")
_PROCESSES = ("deepspeed", "deepspeed_plugin", "fsdp", "parallelism_config")
_OF_TRANSFORMERS = ("WithPadding", "ForLanguageModeling", "ForSeq2Seq")
_COLLATORS = ("default_data_collator", *(f"DataCollator{kind}" for kind in _OF_TRANSFORMERS))

SETTINGS = (
    Setting(
        names=("gradient_accumulation_steps",),
        taken=(1,),
        why="a private step draws the plan's whole cohort: accumulating adds up several's noise",
        instead="leave it at 1: the plan's cohort_size says how many users a step has, and "
        "per_device_train_batch_size how many rows share a pass (memory, never privacy)",
    ),
    Setting(
        names=("mixed_precision", "fp16"),
        taken=("bf16",),
        why="loss scaling (GradScaler) skips steps whose numbers overflow, which tells of people",
        instead="use bf16=True, or float32; `accelerate config` may have asked for fp16",
    ),
    Setting(
        names=("packing", "padding_free"),
        why="several users would share a sequence, and attend to each other",
        instead="leave it out",
    ),
    Setting(
        names=(*_LOSS, "loss_type", "label_smoothing_factor", "router_aux_loss_coef"),
        taken=("nll",),
        why="the gradient of a private step is that of loss=, on which it would have no effect",
        instead="give a loss per row as loss=, see userdp.gradients.Loss",
    ),
    Setting(
        names=("data_collator",),
        taken=_COLLATORS,
        why="a private step builds its own rows, on which a collator would have no effect",
        instead="make input_ids and labels with dataset.map, and leave data_collator out",
    ),
    Setting(
        names=("neftune_noise_alpha", "activation_offloading", "use_liger_kernel"),
        why="the gradient engines do not know its hooks or fused layers",
        instead="leave it out; gradient_checkpointing=True saves memory",
    ),
    Setting(
        names=(*_PROCESSES, "world_size", "n_gpu"),
        taken=(1,),
        why="gradients would be added up over processes or GPUs before users are clipped",
        instead="use one GPU, as by CUDA_VISIBLE_DEVICES=0, or userdp.make_private under torchrun",
    ),
    Setting(
        names=("auto_find_batch_size",),
        why="it begins anew after memory ran out, and the steps so far stay charged",
        instead="give a smaller per_device_train_batch_size: memory, never privacy",
    ),
    Setting(
        names=("model_init",),
        why="each trial of a hyperparameter search has a price, and the choice among them another",
        instead="give model=; userdp tune pays for all trials with one private selection",
    ),
    Setting(
        names=("WANDB_WATCH",),
        taken=("false", "parameters"),
        why="it records the gradients of single users, before they are clipped",
        instead="unset it: grad_norm, of the noisy gradient, is logged",
    ),
    PUSH,
    EVALUATION,
)


def private_args(args: Any, options: Mapping[str, Any], plan: Plan, *, public_eval: bool) -> Any:
    """A copy of a trainer's arguments, as a private run takes them.

    Args:
        args: `transformers.TrainingArguments`, or a class that descends from it.
        options: other arguments of the trainer, and its own methods that replace theirs.
        plan: decides the number of steps.
        public_eval: ``eval_dataset`` is nobody's private text.

    Raises:
        UseError: names the setting that is refused, why, and what to do instead.
    """
    for setting in SETTINGS:
        if setting is EVALUATION and public_eval:
            continue
        for name in setting.names:
            if not setting.takes(options.get(name, getattr(args, name, os.environ.get(name)))):
                raise setting.refusal(name)
    if args.max_steps not in (-1, plan.steps):
        raise UseError(
            f"the arguments ask for {args.max_steps} steps (max_steps), and the plan has "
            f"{plan.steps}: epsilon is the price of the plan's steps",
            hint=f"leave max_steps out, or plan again with {args.max_steps} steps",
        )
    private = copy.copy(args)
    # The plan's clip bounds each user, and another one would only change the learning rate.
    private.max_steps, private.max_grad_norm = plan.steps, 0.0
    return private
