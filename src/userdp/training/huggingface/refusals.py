"""Options of the trainers that would break the guarantee: each refused or overridden, by name.

`REFUSED` and `OVERRIDDEN` are the whole list, and the table in docs/huggingface.md is the same list
(a test compares them). Nothing has been prepared or charged when one of them is refused.
"""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from userdp.errors import UseError
from userdp.plans import Plan

_EPOCHS = 3.0
"""`TrainingArguments.num_train_epochs` of somebody who gave none."""
_REPORTERS = {"none", "tensorboard", "wandb"}
_WATCHING = {
    "WANDB_WATCH": ("gradients", "all"),
    "WANDB_LOG_MODEL": ("end", "checkpoint", "true"),
}
"""Settings of Weights & Biases that hook into backward passes, or upload what is not released."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """An option that is refused.

    Args:
        name: of the option.
        asked: whether the arguments ask for it.
        why: what it would do to the guarantee.
        instead: the way out.
    """

    name: str
    asked: Callable[[Any], bool]
    why: str
    instead: str

    def check(self, args: Any) -> None:
        """`UseError` if ``args`` ask for it."""
        if self.asked(args):
            raise UseError(f"{self.name} is refused here: {self.why}", hint=self.instead)


def _set(name: str) -> Callable[[Any], bool]:
    """Whether an option is anything but off; options of other versions are off."""
    return lambda args: bool(getattr(args, name, None))


def _is(name: str, *values: str) -> Callable[[Any], bool]:
    """Whether an option is one of these."""
    return lambda args: _word(getattr(args, name, None)) in values


def _word(value: Any) -> str:
    return str(getattr(value, "value", value))


def _reporters(args: Any) -> set[str]:
    named = getattr(args, "report_to", None) or []
    return {named} if isinstance(named, str) else set(named)


REFUSED = (
    Refusal(
        name="fp16",
        asked=lambda args: args.fp16 or getattr(args, "fp16_full_eval", False),
        why="its loss scaling skips the update of a step whose numbers overflow, and what people "
        "wrote decides whether they do",
        instead="use bf16=True, or float32",
    ),
    Refusal(
        name="auto_find_batch_size",
        asked=_set("auto_find_batch_size"),
        why="it begins the training loop anew after memory ran out, and the steps so far stay "
        "charged",
        instead="give a smaller per_device_train_batch_size: memory, never privacy",
    ),
    Refusal(
        name="gradient_accumulation_steps",
        asked=lambda args: args.gradient_accumulation_steps != 1,
        why="a private step draws the plan's whole cohort and is one update, so that accumulating "
        "would add up the noise of several",
        instead="leave it at 1; the plan's cohort_size says how many users a step has, and "
        "per_device_train_batch_size how many rows share a pass",
    ),
    Refusal(
        name="label_smoothing_factor",
        asked=_set("label_smoothing_factor"),
        why="the trainer's loss is not the one that is clipped, so that it would have no effect",
        instead="give a loss of your own as loss=",
    ),
    Refusal(
        name="neftune_noise_alpha",
        asked=_set("neftune_noise_alpha"),
        why="its noise on the embeddings is drawn by a hook that the gradient engines do not know",
        instead="leave it out",
    ),
    Refusal(
        name="use_liger_kernel",
        asked=_set("use_liger_kernel"),
        why="its fused layers and loss average over the rows of a pass, which couples users",
        instead="leave it out",
    ),
    Refusal(
        name="torch_compile",
        asked=_set("torch_compile"),
        why="the gradient engines look at each layer of a pass, and compiled code has none",
        instead="leave it out",
    ),
    Refusal(
        name="debug",
        asked=_set("debug"),
        why="it prints the exact activations of people's text",
        instead="debug on public text, with transformers.Trainer",
    ),
    Refusal(
        name="deepspeed",
        asked=_set("deepspeed"),
        why="it takes over the backward pass, where users are clipped",
        instead="use one process, or userdp.make_private under torchrun",
    ),
    Refusal(
        name="fsdp",
        asked=_set("fsdp"),
        why="it averages gradients over processes before users were clipped",
        instead="use one process, or userdp.make_private under torchrun",
    ),
    Refusal(
        name="parallelism_config",
        asked=_set("parallelism_config"),
        why="it splits passes over processes before users were clipped",
        instead="use one process, or userdp.make_private under torchrun",
    ),
    Refusal(
        name="several processes",
        asked=lambda args: args.world_size > 1,
        why="DistributedDataParallel averages gradients over processes before users were clipped",
        instead="use one process, or userdp.make_private under torchrun",
    ),
    Refusal(
        name="several GPUs in one process",
        asked=lambda args: args.n_gpu > 1,
        why="nn.DataParallel copies the model, and the gradient engines would see none of the "
        "copies",
        instead="make one GPU visible: CUDA_VISIBLE_DEVICES=0",
    ),
    Refusal(
        name="full_determinism",
        asked=_set("full_determinism"),
        why="noise, cohorts and dropout masks come from the operating system: a run that could be "
        "repeated bit for bit from a published seed would hide nobody",
        instead="leave it out; seed still fixes how new weights begin",
    ),
    Refusal(
        name="train_sampling_strategy",
        asked=lambda args: (
            _word(getattr(args, "train_sampling_strategy", "random")) != "random"
            or bool(getattr(args, "group_by_length", False))
        ),
        why="the plan's sampling is the one that is accounted, and rows that were grouped by their "
        "length follow no such law",
        instead="leave it out; a step's rows are sorted into passes without it",
    ),
    Refusal(
        name="include_num_input_tokens_seen",
        asked=lambda args: (
            _word(getattr(args, "include_num_input_tokens_seen", "no")) not in ("no", "False")
        ),
        why="how many tokens a step read is an exact number about the people who were drawn",
        instead="leave it out; operator.jsonl has the exact numbers",
    ),
    Refusal(
        name="report_to",
        asked=lambda args: bool(_reporters(args) - _REPORTERS),
        why="of this reporter it is not known whether it sends more than the logged values",
        instead="use tensorboard, wandb, or a callback of your own: the logged values are the same",
    ),
    Refusal(
        name="WANDB_WATCH, WANDB_LOG_MODEL",
        asked=lambda args: (
            "wandb" in _reporters(args)
            and any(os.environ.get(name, "").lower() in words for name, words in _WATCHING.items())
        ),
        why="the one records gradients inside the private passes, before they are clipped; the "
        "other uploads checkpoints that were not released",
        instead="unset them",
    ),
    Refusal(
        name="push_to_hub",
        asked=_set("push_to_hub"),
        why="it uploads the output folder, in which checkpoints and the operator's files lie too",
        instead="upload OUTPUT_DIR/model after training: it is what was released",
    ),
    Refusal(
        name="optim",
        asked=lambda args: any(
            part in _word(args.optim) for part in ("lomo", "layerwise", "schedule_free")
        ),
        why="this optimizer updates within the backward pass, before noise is added (LOMO, and "
        "the layer-wise ones), or keeps other weights than the ones it shows (schedule-free)",
        instead="use any other, such as adamw_torch: it sees only the noisy gradient",
    ),
    Refusal(
        name="reentrant checkpointing",
        asked=lambda args: any(
            bool((getattr(args, name, None) or {}).get("use_reentrant"))
            for name in ("activation_checkpointing_kwargs", "gradient_checkpointing_kwargs")
        ),
        why="it runs backward passes of its own, which the gradient engines do not see",
        instead="leave use_reentrant out",
    ),
    Refusal(
        name="packing",
        asked=_set("packing"),
        why="several users would share a sequence, and attend to each other",
        instead="leave it out",
    ),
    Refusal(
        name="padding_free",
        asked=_set("padding_free"),
        why="several users would share a sequence",
        instead="leave it out",
    ),
    Refusal(
        name="loss_type",
        asked=lambda args: getattr(args, "loss_type", "nll") != "nll",
        why="the trainer's loss is not the one that is clipped, so that it would have no effect",
        instead="leave it at nll, or give a loss of your own as loss=",
    ),
    Refusal(
        name="router_aux_loss_coef",
        asked=_set("router_aux_loss_coef"),
        why="a load-balancing loss is computed over all users of a pass together",
        instead="leave it out",
    ),
    Refusal(
        name="activation_offloading",
        asked=_set("activation_offloading"),
        why="it replaces what the passes of the gradient engines keep",
        instead="use gradient_checkpointing=True to save memory",
    ),
    Refusal(
        name="truncation_mode",
        asked=_is("truncation_mode", "keep_end"),
        why="nothing is cut off here: a longer row becomes several examples of max_length tokens",
        instead="leave it at keep_start",
    ),
)
"""What `TrainingArguments` or `SFTConfig` may not ask for."""


def _evaluates(args: Any) -> bool:
    return (
        _word(getattr(args, "eval_strategy", "no")) != "no"
        or bool(getattr(args, "eval_on_start", False))
        or bool(args.load_best_model_at_end)
        or bool(args.metric_for_best_model)
        or _word(args.save_strategy) == "best"
        or _word(args.lr_scheduler_type) in ("reduce_lr_on_plateau", "greedy")
    )


EVALUATION = Refusal(
    name="evaluation that steers training",
    asked=_evaluates,
    why="eval_strategy, load_best_model_at_end, metric_for_best_model, save_strategy='best' and "
    "schedules that follow a metric let exact losses of people's text choose what is released",
    instead="say public_eval=True if the evaluation data is nobody's private text; else call "
    "trainer.evaluate() after training, which notes a look in the store's ledger",
)
"""Refused unless the evaluation data is declared public; early stopping likewise."""

OVERRIDDEN = {
    "max_grad_norm": "0: the plan's clip bounds each user before noise is added, and scaling the "
    "noisy sum again would only change the learning rate from step to step",
    "max_steps": "the plan's steps; another number that was given is an error",
    "num_train_epochs": "what the plan's steps come to; another number that was given is an error",
    "per_device_train_batch_size": "rows that share a pass (memory, never privacy); the plan says "
    "how many users a step draws",
    "dataloader_num_workers": "0: the trainer's data loader holds tickets and no data",
    "data_seed": "without effect: cohorts are drawn from the operating system's randomness",
    "shuffle_dataset": "without effect: cohorts are drawn",
    "average_tokens_across_devices": "without effect: no loss is divided by a count of tokens of "
    "several users",
}
"""What an option becomes, and why that is harmless."""


def required_args(args: Any, plan: Plan, *, public_eval: bool) -> Any:
    """A copy of a trainer's arguments, with what the plan decides in them.

    Raises:
        UseError: they ask for what is refused, or for another number of steps.
    """
    for refusal in REFUSED:
        refusal.check(args)
    if not public_eval:
        EVALUATION.check(args)
    _require_steps(args, plan)
    args = copy.copy(args)
    args.max_steps = plan.steps
    args.max_grad_norm = 0.0
    args.dataloader_num_workers = 0
    if hasattr(args, "shuffle_dataset"):
        args.shuffle_dataset = False
    return args


def require_unchanged(args: Any, plan: Plan, *, public_eval: bool) -> None:
    """The same of arguments that were written to since: they are asked again when training begins.

    Raises:
        UseError: they ask for what is refused, or for another number of steps.
    """
    required_args(args, plan, public_eval=public_eval)
    for name, value in {"max_grad_norm": 0.0, "max_steps": plan.steps}.items():
        if getattr(args, name) != value:
            raise UseError(
                f"{name} was changed after the trainer was made: {OVERRIDDEN[name]}",
                hint="leave trainer.args as they are",
            )


def _require_steps(args: Any, plan: Plan) -> None:
    given: int | None = None
    if args.max_steps > 0:
        given = args.max_steps
    elif args.num_train_epochs != _EPOCHS:
        given = math.ceil(args.num_train_epochs * steps_per_epoch(plan))
    if given not in (None, plan.steps):
        raise UseError(
            f"the arguments ask for {given} steps (max_steps, or num_train_epochs times "
            f"{steps_per_epoch(plan)} steps), and the plan has {plan.steps}: epsilon is the price "
            "of the plan's steps",
            hint=f"leave both out, or plan again with {given} steps",
        )


def steps_per_epoch(plan: Plan) -> int:
    """Steps in which everybody is drawn once on average; of the declared population, so public."""
    return max(1, round(plan.population / plan.denominator))
