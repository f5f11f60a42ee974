"""The settings of a training run on which privacy does not depend.

`TrainConfig` says how the model learns, `RunOptions` how one call of ``userdp train`` runs, and
`PrivateOptions` what a loop of somebody's own may change. `PlainPlan` trains without privacy. What
privacy depends on is the `userdp.plans.Plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, get_type_hints

from userdp.core.codec import decode, encode
from userdp.core.errors import UseError
from userdp.core.vocabulary import require_count, require_positive
from userdp.data.selection_strategies import Strategy


class OptimizerName(StrEnum):
    """Optimizers; each sees only the noisy gradient, so each is free post-processing."""

    ADAMW = "adamw"
    SGD = "sgd"


class Schedule(StrEnum):
    """The learning rate after the warm-up; "following" is `following_factor`."""

    FOLLOWING = "following"
    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


class Averaging(StrEnum):
    """Which weights are released: the last, or their exponential moving average."""

    AUTO = "auto"
    NONE = "none"
    EMA = "ema"


class EngineName(StrEnum):
    """How gradients are clipped (`userdp.gradients.engines`); "auto" lets users share passes."""

    AUTO = "auto"
    REFERENCE = "reference"


class Precision(StrEnum):
    """The precision of the matrix products; weights, gradients and noise stay float32 or wider."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


@dataclass(frozen=True, kw_only=True, slots=True)
class UnsafeSeeds:
    """FOR TESTS ONLY: seeds that somebody knows. A run with any of them claims nothing.

    Args:
        draws: fixes the cohorts, which voids the amplification.
        noise: fixes the noise and the dropout masks, which voids all privacy.
    """

    draws: int | None = None
    noise: int | None = None

    def __bool__(self) -> bool:
        return self.draws is not None or self.noise is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class PrivateOptions:
    """How a loop of one's own runs: memory, files and permissions.

    Args:
        micro_batch: most rows in one pass; memory, never privacy.
        resume: go on with the interrupted run in the folder: the steps that its ledger does not
            hold yet, with fresh cohorts and noise. Restoring the weights is the caller's part;
            attempts whose update was lost stay charged.
        dry_run: do all but charge and write: print noise, time and the claims that will result. The
            run that is returned has these as its ``forecast``, takes no step and saves nothing, so
            that the script goes through to its end.
        engine: how gradients are clipped, see `userdp.gradients.get_engine`; time, never privacy.
        selection: which of a user's examples train, see `userdp.data.selection`; fixed once for
            ELS, anew per step for ULS where it draws. A resumed run must share it.
        scores: the file of `userdp.training.store_losses.score_store`; only for selections by
            perplexity.
        exact_log: whether `Step.operator` holds exact numbers (losses, norms, counts). A loop that
            follows them (ReduceLROnPlateau, the best weights by loss) releases what no ε covers, so
            they are a look in the store's ledger and a condition of this run's claim. A resumed run
            keeps to what it was charged with.
        allow_large_delta: begin a plan whose δ is not below 1 over its declared population, and do
            not warn of one above n^-1.1 (`userdp.plans.small_delta`); for toys, and for callers who
            know a smaller number of users. Resuming does not ask again.
        unsafe_seeds: FOR TESTS ONLY.
    """

    micro_batch: int = 32
    resume: bool = False
    dry_run: bool = False
    engine: str = "auto"
    selection: str = Strategy.RANDOM
    scores: Path | None = None
    exact_log: bool = False
    allow_large_delta: bool = False
    unsafe_seeds: UnsafeSeeds = UnsafeSeeds()


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOptions:
    """How one call of ``userdp train`` runs: devices, files and permissions; never what is learned.

    Args:
        device: where gradients and noise are computed: auto (cuda where there is one, else cpu),
            cpu, cuda or cuda:N. A run may resume on another one.
        sharded: under torchrun, take the model apart over the processes (FSDP2), for one that no
            process holds whole; without it each process has all of it. A run may resume either way.
        verify: check every byte of the store before anything is charged; sizes and a sample of 32
            MiB are always checked.
        scores: the file of userdp store score, for a selection by perplexity.
        report_to: what of `transformers` draws the run's curves: tensorboard (into the run's
            folder), wandb, mlflow, …; for the operator only.
        allow_large_delta: begin even where delta is not below 1 over the declared population (of
            users; of examples where no number of users is declared): a claim that says little.
        resume: go on with the interrupted run: its remaining steps, from its last checkpoint; or
            only settle it, where a kill came when all else was done.
        dry_run: do all but charge and write: tell noise, time and the claims that will result.
        slot: the trial of a private selection, which pays for it; given only by a tuning.
    """

    device: str = "auto"
    sharded: bool = False
    verify: bool = False
    scores: Path | None = None
    report_to: tuple[str, ...] = ()
    allow_large_delta: bool = False
    resume: bool = False
    dry_run: bool = False
    slot: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """How the model learns. All of it is public, and fixed before the run.

    Args:
        model: "bundled", "new" (built from layers, width, heads), a folder of a Hugging Face
            causal language model, or its name on the hub.
        layers: of a new model.
        width: of a new model.
        heads: of a new model.
        seed: of a new model's and the adapters' initial weights; sampling and noise never use it.
        optimizer: adamw, or sgd with momentum.
        learning_rate: after the warm-up, before its schedule; by default 0.002, of adapters 0.008.
        warmup_steps: the learning rate rises linearly over so many steps.
        schedule: of the learning rate after the warm-up. "following" lets it follow the noisy
            gradients, up to four times as high or low, free in epsilon; by default where no
            learning rate is given, with adamw. Else constant.
        weight_decay: decoupled; 0 turns it off.
        lora_rank: train low-rank adapters of this rank in place of all weights.
        lora_alpha: scale of the adapters; twice the rank by default.
        lora_targets: modules that get an adapter; all linear ones by default.
        train_all: position embeddings and what makes queries, keys and values learn too. By default
            they stay those of a pre-trained model: noise there harms more than text teaches. A new
            model, and a run without privacy, train all.
        dropout: set in every part of the model that has one.
        averaging: release the last weights (none), or their moving average (ema), which is free
            post-processing; auto averages where the noise is at most 0.002 of the clip norm.
        averaging_decay: of the moving average, at most.
        precision: of the matrix products; bfloat16 is faster where the processor has it. With
            dropout each user (with example sampling: each example) then has a pass of its own.
        base_precision: of the frozen weights under adapters; bfloat16 halves their memory.
        activation_checkpointing: compute activations again in the backward pass; saves memory.
        engine: how gradients are clipped; time and memory, never the claim. "reference" has no
            measured part in its sensitivity argument (docs/engines.md).
        selection: which of a user's examples train, where there are more than group_size: random,
            longest, shortest, highest-perplexity or lowest-perplexity (with run.scores); with user
            sampling also random-chunk (pieces of all of the user's text) and resampled (users of
            few examples are filled up by repeating). Time and utility, never the claim.
        micro_batch: most examples in one pass; memory, never privacy.
        checkpoint_every: steps between checkpoints; a crash loses at most so many updates.
        checkpoint_seconds: the same by the clock: whichever is due first. Where writing one takes
            long there are fewer, so that they take a twentieth of the time at most.
        evaluate_every: steps between evaluations on held-out users (operator-only); 0 for never.
        evaluate_users: most held-out users that such an evaluation reads.
        no_exact_log: keep no exact number of people's text, for anybody: no losses, norms and
            counts in the log and on TensorBoard.
    """

    model: str = "bundled"
    layers: int = 4
    width: int = 192
    heads: int = 6
    seed: int = 0
    optimizer: OptimizerName = OptimizerName.ADAMW
    learning_rate: float = None  # type: ignore[assignment]  # a number once it is made
    warmup_steps: int = 0
    schedule: Schedule = None  # type: ignore[assignment]  # one of them once it is made
    weight_decay: float = 0.0
    lora_rank: int | None = None
    lora_alpha: float | None = None
    lora_targets: tuple[str, ...] = ()
    train_all: bool = False
    dropout: float = 0.0
    averaging: Averaging = Averaging.AUTO
    averaging_decay: float = 0.99
    precision: Precision = Precision.FLOAT32
    base_precision: Precision = Precision.FLOAT32
    activation_checkpointing: bool = False
    engine: EngineName = EngineName.AUTO
    selection: Strategy = Strategy.RANDOM
    micro_batch: int = 32
    checkpoint_every: int = 50
    checkpoint_seconds: float = 60.0
    evaluate_every: int = 0
    evaluate_users: int = 200
    no_exact_log: bool = False

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(TrainConfig).items():  # a word stands for its member
            if hasattr(kind, "__members__") and getattr(self, name) is not None:
                object.__setattr__(self, name, decode(kind, getattr(self, name), what=name))
        counts = ("layers", "width", "heads", "micro_batch", "checkpoint_every", "evaluate_users")
        for name in counts:
            require_count(name, getattr(self, name))
        for name in ("seed", "warmup_steps", "evaluate_every"):
            require_count(name, getattr(self, name), at_least=0)
        known: Any = self  # both are None until here where nothing was said
        rate, schedule = known.learning_rate, known.schedule
        adam = self.optimizer is OptimizerName.ADAMW  # it keeps a mean of earlier gradients
        if schedule is None:
            usual = Schedule.FOLLOWING if rate is None and adam else Schedule.CONSTANT
            object.__setattr__(self, "schedule", usual)
        elif schedule is Schedule.FOLLOWING and not adam:
            raise UseError(
                f"a rate follows the mean of earlier gradients, and {self.optimizer} keeps none",
                hint="use --set learning.optimizer=adamw, or another learning.schedule",
            )
        if rate is None:
            # Loads numpy, which `userdp train --help` does without.
            from userdp.plans.preset_defaults import learning_rate_for

            rate = learning_rate_for(low_rank=self.lora_rank is not None)
            object.__setattr__(self, "learning_rate", rate)
        require_positive("learning_rate", self.learning_rate)
        require_positive("checkpoint_seconds", self.checkpoint_seconds)
        for name, most in (("weight_decay", 1), ("dropout", 0.99), ("averaging_decay", 0.999999)):
            if not 0 <= getattr(self, name) <= most:
                raise UseError(f"{name} must be from 0 to {most:g}, got {getattr(self, name)!r}")
        if self.width % self.heads:
            raise UseError(f"width ({self.width}) must be a multiple of heads ({self.heads})")
        if self.lora_rank is not None:
            require_count("lora_rank", self.lora_rank)
        elif self.lora_alpha is not None or self.lora_targets:
            raise UseError(
                "lora_alpha and lora_targets say nothing without a rank",
                hint="add --lora-rank 8, or leave them out",
            )
        elif self.base_precision is not Precision.FLOAT32:
            raise UseError(
                "base_precision is for frozen weights under adapters: what trains stays float32",
                hint="add --lora-rank 8, or use --set learning.precision=bfloat16",
            )
        if self.lora_alpha is not None:
            require_positive("lora_alpha", self.lora_alpha)
        if self.no_exact_log and self.evaluate_every:
            raise UseError(
                "evaluations on held-out users are exact numbers, and no_exact_log keeps none",
                hint="leave evaluate_every out; `userdp evaluate --epsilon E` asks under DP",
            )


def train_config(values: Mapping[str, Any]) -> TrainConfig:
    """A configuration from a run's train.toml; what it does not name is default.

    Raises:
        UseError: a field is unknown or of the wrong kind, for instance of another version.
    """
    known: dict[str, Any] = {name: values.get(name) for name in ("lora_rank", "learning_rate")}
    return decode(TrainConfig, encode(TrainConfig(**known)) | values, what="the configuration")


def changed(config: TrainConfig, **fields: Any) -> TrainConfig:
    """A configuration with other fields.

    A learning rate that is given here, and an optimizer that cannot follow, end a schedule that
    follows, as they do where a configuration is made.
    """
    adam = fields.get("optimizer", config.optimizer) == OptimizerName.ADAMW
    if config.schedule is Schedule.FOLLOWING and ("learning_rate" in fields or not adam):
        fields = {"schedule": None, **fields}
    return replace(config, **fields)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainPlan:
    """A run without privacy: shuffled batches, the mean loss per token, and no claim.

    Args:
        steps: updates.
        batch_size: examples in each.
    """

    steps: int
    batch_size: int

    def __post_init__(self) -> None:
        require_count("steps", self.steps)
        require_count("batch_size", self.batch_size)
