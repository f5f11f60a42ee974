"""How to make again what a run began from, and how it learned: for those who compare, or repeat.

A run of ``userdp train`` has its configuration. A loop of somebody's own is a program: nobody can
repeat it from its run's folder. What evaluation and audit need of it is written down when the run
opens (`OwnLoop`): where the model was loaded from, with the digest of its weights, by which that
place is known to hold them still; and the nearest configuration. The optimizer is post-processing
of what the plan releases, so that what an audit tests does not depend on it. The file is for the
operator alone: it names folders of this machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from userdp import files
from userdp.codec import decode
from userdp.data.store import UserStore
from userdp.data.strategy import Strategy
from userdp.errors import UseError
from userdp.gradients import Loss, causal_lm_loss, trainable_parameters
from userdp.gradients.shards import sharded_parts
from userdp.ledger import RunFolder
from userdp.training.config import EngineName, OptimizerName, PrivateOptions, TrainConfig
from userdp.training.lora import add_adapters, attach_like, is_of_base
from userdp.training.models import enable_checkpointing, load_model, read_model, require_fit
from userdp.training.origin import digest_of_weights
from userdp.training.releasing import is_adapted, uncompiled

_OPTIMIZERS = {
    "AdamBC": OptimizerName.ADAM_BC,
    "Adafactor": OptimizerName.ADAFACTOR,
    "SGD": OptimizerName.SGD,
}
"""By the name of its class; any other is repeated by AdamW."""

_WITHOUT_BASE = (
    "evaluate only the released model (--no-base). The next run knows its base model if that is "
    "loaded with from_pretrained from a folder or the hub, and not changed before make_private"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnLoop:
    """What `make_private` was given. Operator-only.

    Args:
        config: the nearest configuration; its ``model`` is the folder or the hub's name that the
            model says it was loaded from, and empty where it was made in memory.
        revision: of the hub, if the model says one.
        weights: the digest of the weights at the opening, adapters left out; None of a sharded
            model, of which no process holds them all.
        dtype: of these weights; of the first of them, where they differ.
        adapters: the name of its adapters, if it has such.
        trained: the names of the parameters that train.
        loss: whether it is `userdp.gradients.causal_lm_loss`.
    """

    schema: ClassVar[str] = "userdp.loop/1"

    config: TrainConfig
    revision: str | None
    weights: str | None
    dtype: str
    adapters: str | None
    trained: tuple[str, ...]
    loss: bool


def own_loop(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Loss,
    options: PrivateOptions,
    micro_batch: int,
) -> OwnLoop:
    """Write down what `make_private` was given, before the first step."""
    inner: Any = uncompiled(model)
    adapted = is_adapted(inner)
    noted = str(getattr(inner, "name_or_path", "") or "")
    revision = getattr(getattr(inner, "config", None), "_commit_hash", None)
    only = (lambda name: is_of_base(inner, name)) if adapted else None
    weights = None if sharded_parts(model) else digest_of_weights(inner, only=only)
    floating = (p.dtype for p in inner.parameters() if p.dtype.is_floating_point)
    group = optimizer.param_groups[0]
    # A schedule that warms up has set the rate of the first step, and noted the one given.
    rate = float(group.get("initial_lr", group.get("lr", 0.0)))
    return OwnLoop(
        config=TrainConfig(
            model=str(Path(noted).resolve()) if noted and Path(noted).is_dir() else noted,
            optimizer=_OPTIMIZERS.get(type(optimizer).__name__, OptimizerName.ADAMW),
            learning_rate=rate if rate > 0 else TrainConfig().learning_rate,
            engine=EngineName(options.engine),
            selection=Strategy(options.selection),
            micro_batch=micro_batch,
        ),
        revision=revision if isinstance(revision, str) else None,
        weights=weights,
        dtype=str(next(floating, torch.float32)).removeprefix("torch."),
        adapters=str(inner.active_adapter) if adapted else None,
        trained=tuple(trainable_parameters(inner)),
        loss=loss is causal_lm_loss,
    )


class Recipe:
    """What is known of a run of ``userdp train`` beyond its plan.

    Args:
        config: of the run.
        weights: the digest of the weights that it began from, by its ledger; None of new ones,
            which follow the seed.
    """

    def __init__(self, config: TrainConfig, *, weights: str | None = None) -> None:
        self.config, self._weights = config, weights

    def base(self, store: UserStore) -> nn.Module:
        """The model that the run began from, without adapters.

        Raises:
            UseError: it is not known, or not there any more.
        """
        model = load_model(self.config, store)
        self._require_began_from(model)
        return model

    def require_repeatable(self) -> None:
        """`UseError` where the run cannot be made again; nothing is loaded for the answer."""

    def model(self, store: UserStore) -> nn.Module:
        """That model as the run began to train it: with fresh adapters, if it had such."""
        model = add_adapters(self.base(store), self.config)
        if self.config.activation_checkpointing:
            enable_checkpointing(model)
        return model

    def _require_began_from(self, model: nn.Module) -> None:
        if self._weights not in (None, digest_of_weights(model)):
            raise UseError(
                f"{self.config.model!r} does not hold the weights that the run began from: it "
                "would be compared with another model",
                hint="put these weights back, or leave the base out (--no-base). A relative name "
                "is looked up in the folder where the command is called: call it where the run was "
                "trained",
            )


class LoopRecipe(Recipe):
    """That of a run of `make_private`, from its folder, with its released model."""

    def __init__(self, folder: RunFolder) -> None:
        values = files.read_json(folder.loop, what="a run's loop")
        self._loop = decode(OwnLoop, values, what="a run's loop")
        self._folder = folder
        super().__init__(self._loop.config, weights=self._loop.weights)

    def base(self, store: UserStore) -> nn.Module:
        return self._read(store).float()

    def require_repeatable(self) -> None:
        self._require_known_base()
        if not self._loop.loss:
            raise UseError(
                f"the loop of the run at {self._folder.path} has a loss of its own, so that its "
                "run cannot be repeated with canaries",
                hint="audit only the released model: --no-repeat",
            )

    def model(self, store: UserStore) -> nn.Module:
        self.require_repeatable()
        model = self._read(store)
        if self._loop.adapters is not None:
            model = attach_like(model, self._folder.adapter, name=self._loop.adapters)
        known, trained = dict(model.named_parameters()), set(self._loop.trained)
        if not trained <= known.keys():
            raise UseError(
                f"the model of the run at {self._folder.path} cannot be made again: it trained "
                f"{sorted(trained - known.keys())[0]}, which {self.config.model} has not",
                hint="audit only the released model: --no-repeat",
            )
        for name, parameter in known.items():
            parameter.requires_grad_(name in trained)
        return model.train()

    def _read(self, store: UserStore) -> nn.Module:
        """The base model in the dtype that it had, with the dropout that it trained with."""
        self._require_known_base()
        model = read_model(
            self.config.model,
            settings=self._folder.model if self._folder.model.is_dir() else None,
            dtype=getattr(torch, self._loop.dtype),
            revision=self._loop.revision,
        )
        self._require_began_from(model)
        require_fit(model, self.config.model, store)
        return model

    def _require_known_base(self) -> None:
        if self._loop.weights is None or not self.config.model:
            why = "was sharded" if self._loop.weights is None else "was made in memory"
            raise UseError(
                f"the model that the run at {self._folder.path} began from {why}, so that its "
                "weights are not known any more",
                hint=_WITHOUT_BASE,
            )
