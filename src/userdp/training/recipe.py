"""How to make again what a run began from, and how it learned: for those who compare, or repeat."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import nn

from userdp.data.store import UserStore
from userdp.data.strategy import Strategy
from userdp.errors import UseError
from userdp.gradients import Loss
from userdp.training.averaging import WeightAverage, build_average
from userdp.training.config import TrainConfig
from userdp.training.lora import add_adapters
from userdp.training.losses import build_loss
from userdp.training.models import enable_checkpointing, load_model
from userdp.training.optimizers import build_optimizer, learning_rate, set_learning_rate
from userdp.training.origin import digest_of_weights


class Recipe(ABC):
    """What is known of a run beyond its plan.

    Attributes:
        name: of the model that it began from, for messages.
        micro_batch: see `userdp.make_private`, as for the next two.
        engine: how gradients were clipped.
        selection: which of a user's examples trained.
    """

    name: str
    micro_batch: int
    engine: str
    selection: Strategy

    @abstractmethod
    def base(self, store: UserStore) -> nn.Module:
        """The model that the run began from, without adapters.

        Raises:
            UseError: it is not known, or not there any more.
        """

    @abstractmethod
    def require_repeatable(self) -> None:
        """`UseError` where the run cannot be made again; nothing is loaded for the answer."""

    @abstractmethod
    def model(self, store: UserStore) -> nn.Module:
        """That model as the run began to train it: with fresh adapters, if it had such."""

    @abstractmethod
    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """A new one, over what trains."""

    @abstractmethod
    def loss(self, model: nn.Module) -> Loss:
        """Per row."""

    @abstractmethod
    def average(self, model: nn.Module) -> WeightAverage | None:
        """Of the weights, if that was released."""

    @abstractmethod
    def set_rate(self, optimizer: torch.optim.Optimizer, *, step: int, steps: int) -> None:
        """Use the learning rate of step ``step`` (from 1) of ``steps``."""


def require_began_from(model: nn.Module, weights: str | None, name: str) -> None:
    """`UseError` unless a base model that was loaded again has the weights that a run began from.

    Args:
        model: as it was loaded, in the dtype that it had then.
        weights: their digest, as the run noted it; None of new ones, which follow the seed.
        name: that it was loaded by.
    """
    if weights not in (None, digest_of_weights(model)):
        raise UseError(
            f"{name!r} does not hold the weights that the run began from: it would be compared "
            "with another model",
            hint="put these weights back, or leave the base out (--no-base). A relative name is "
            "looked up in the folder where the command is called: call it where the run was "
            "trained",
        )


class Configured(Recipe):
    """That of a run of ``userdp train``: all stands in its configuration.

    Args:
        config: of the run.
        weights: the digest of the weights that it began from, by its ledger; None of new ones,
            which follow the seed.
    """

    def __init__(self, config: TrainConfig, *, weights: str | None = None) -> None:
        self.config = config
        self._weights = weights
        self.name = config.model
        self.micro_batch = config.micro_batch
        self.engine = config.engine
        self.selection = config.selection

    def base(self, store: UserStore) -> nn.Module:
        model = load_model(self.config, store)
        require_began_from(model, self._weights, self.config.model)
        return model

    def require_repeatable(self) -> None:
        return

    def model(self, store: UserStore) -> nn.Module:
        model = add_adapters(self.base(store), self.config)
        if self.config.activation_checkpointing:
            enable_checkpointing(model)
        return model

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return build_optimizer(model, self.config)

    def loss(self, model: nn.Module) -> Loss:
        return build_loss(self.config, model)

    def average(self, model: nn.Module) -> WeightAverage | None:
        return build_average(model, self.config)

    def set_rate(self, optimizer: torch.optim.Optimizer, *, step: int, steps: int) -> None:
        set_learning_rate(optimizer, learning_rate(self.config, step=step, steps=steps))
