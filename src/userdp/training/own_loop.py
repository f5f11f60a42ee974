"""What `make_private` was given by a loop of somebody's own: written down, and made again from it.

A loop is a program: nobody can repeat it from its run's folder. What evaluation and audit need of
it can be written down when the run opens: where the model was loaded from and the digest of its
weights, by which that place is known to hold them still; the optimizer, where its class is torch's
or userdp's own; and how gradients were clipped. The file is for the operator alone: it names
folders of this machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from userdp import files
from userdp.codec import decode, encode
from userdp.data.store import UserStore
from userdp.data.strategy import Strategy
from userdp.errors import UseError
from userdp.gradients import Loss, causal_lm_loss, trainable_parameters
from userdp.gradients.shards import sharded_parts
from userdp.ledger import RunFolder
from userdp.training.adam_bc import AdamBC
from userdp.training.averaging import WeightAverage
from userdp.training.lora import attach_like, is_of_base
from userdp.training.models import read_model, require_fit
from userdp.training.origin import digest_of_weights
from userdp.training.recipe import Recipe, require_began_from
from userdp.training.releasing import is_adapted, uncompiled

_OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    one.__name__: one
    for one in (
        torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adafactor,
        torch.optim.RMSprop, torch.optim.Adagrad, AdamBC,
    )
}  # fmt: skip
"""Those that can be made again: each takes all of its options from the groups of its parameters."""


_NOT_KEPT = ("params", "foreach", "fused", "capturable")
"""Of a group: its parameters, and kernels that fit the device of the run."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerGroup:
    """Some of the parameters that an optimizer holds.

    Args:
        parameters: by name.
        options: of the group, such as the learning rate.
    """

    parameters: tuple[str, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnLoop:
    """What `make_private` was given. Operator-only.

    Args:
        base: the folder or the hub's name that the model says it was loaded from; empty where it
            was made in memory.
        revision: of the hub, if the model says one.
        weights: the digest of the weights at the opening, adapters left out; None of a sharded
            model, of which no process holds them all.
        dtype: of these weights; of the first of them, where they differ.
        adapters: the name of its adapters, if it has such.
        trained: the names of the parameters that train.
        optimizer: the name of its class.
        groups: of the optimizer; None where they cannot be written down.
        loss: whether it is `userdp.gradients.causal_lm_loss`.
        micro_batch: see `make_private`, as for the next two.
        engine: how gradients are clipped.
        selection: which of a user's examples train.
    """

    schema: ClassVar[str] = "userdp.loop/1"

    base: str
    revision: str | None
    weights: str | None
    dtype: str
    adapters: str | None
    trained: tuple[str, ...]
    optimizer: str
    groups: tuple[OptimizerGroup, ...] | None
    loss: bool
    micro_batch: int
    engine: str
    selection: Strategy


def own_loop(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    weights: str,
    loss: Loss,
    micro_batch: int,
    engine: str,
    selection: Strategy,
) -> OwnLoop:
    """Write down what `make_private` was given, before the first step.

    Args:
        model: as it is about to train.
        optimizer: over it.
        weights: the digest of all of the model's weights.
        loss: of the run, as for all others.
        micro_batch: of the run.
        engine: of the run.
        selection: of the run.
    """
    inner = uncompiled(model)
    adapted: Any = inner if is_adapted(inner) else None
    noted = str(getattr(inner, "name_or_path", "") or "")
    revision = getattr(getattr(inner, "config", None), "_commit_hash", None)
    digest: str | None = weights
    if adapted is not None:
        digest = digest_of_weights(inner, only=lambda name: is_of_base(inner, name))
    if sharded_parts(model):
        digest = None
    names = {parameter: name for name, parameter in trainable_parameters(inner).items()}
    floating = (p.dtype for p in inner.parameters() if p.dtype.is_floating_point)
    return OwnLoop(
        base=str(Path(noted).resolve()) if noted and Path(noted).is_dir() else noted,
        revision=revision if isinstance(revision, str) else None,
        weights=digest,
        dtype=str(next(floating, torch.float32)).removeprefix("torch."),
        adapters=None if adapted is None else str(adapted.active_adapter),
        trained=tuple(names.values()),
        optimizer=type(optimizer).__name__,
        groups=_groups(optimizer, names),
        loss=loss is causal_lm_loss,
        micro_batch=micro_batch,
        engine=engine,
        selection=selection,
    )


def read_own_loop(folder: RunFolder) -> OwnLoop:
    """What is written in a run's folder.

    Raises:
        UseError: nothing is, or it is damaged.
    """
    return decode(OwnLoop, files.read_json(folder.loop, what="a run's loop"), what="a run's loop")


class Repeated(Recipe):
    """That of a run of `make_private`.

    The schedule of the learning rate is the loop's own, which nobody wrote down: a repetition holds
    the rate that the optimizer was made with. Every optimizer is post-processing of what the plan
    releases, so that what an audit tests does not depend on it.

    Args:
        loop: what is known of it.
        folder: of the run, with its released model.
    """

    def __init__(self, loop: OwnLoop, folder: RunFolder) -> None:
        self._loop, self._folder = loop, folder
        self.name = Path(loop.base).name or "a model made in memory"
        self.micro_batch = loop.micro_batch
        self.engine = loop.engine
        self.selection = loop.selection

    def base(self, store: UserStore) -> nn.Module:
        return self._read(store).float()

    def require_repeatable(self) -> None:
        self._require_known_base()
        missing = {
            "a loss of its own": not self._loop.loss,
            f"an optimizer ({self._loop.optimizer}) that cannot be made again by its name and "
            "numbers": self._loop.groups is None,
        }
        for what, is_missing in missing.items():
            if is_missing:
                raise UseError(
                    f"the loop of the run at {self._folder.path} has {what}, so that its run "
                    "cannot be repeated with canaries",
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
                f"{sorted(trained - known.keys())[0]}, which {self.name} has not",
                hint="audit only the released model: --no-repeat",
            )
        for name, parameter in known.items():
            parameter.requires_grad_(name in trained)
        return model.train()

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        assert self._loop.groups is not None
        parameters = dict(model.named_parameters())
        made: Any = _OPTIMIZERS[self._loop.optimizer]
        optimizer: torch.optim.Optimizer = made(
            [
                {**group.options, "params": [parameters[name] for name in group.parameters]}
                for group in self._loop.groups
            ]
        )
        return optimizer

    def loss(self, model: nn.Module) -> Loss:
        return causal_lm_loss

    def average(self, model: nn.Module) -> WeightAverage | None:
        return None

    def set_rate(self, optimizer: torch.optim.Optimizer, *, step: int, steps: int) -> None:
        return

    def _read(self, store: UserStore) -> nn.Module:
        """The base model in the dtype that it had, with the dropout that it trained with."""
        self._require_known_base()
        model = read_model(
            self._loop.base,
            settings=self._folder.model if self._folder.model.is_dir() else None,
            dtype=getattr(torch, self._loop.dtype),
            revision=self._loop.revision,
        )
        require_began_from(model, self._loop.weights, self._loop.base)
        require_fit(model, self._loop.base, store)
        return model

    def _require_known_base(self) -> None:
        if self._loop.weights is None:
            raise UseError(
                f"the model of the run at {self._folder.path} was sharded, so that no process knew "
                "all of the weights that it began from",
                hint=_WITHOUT_BASE,
            )
        if not self._loop.base:
            raise UseError(
                f"the model that the run at {self._folder.path} began from was made in memory, so "
                "that its weights are not there any more",
                hint=_WITHOUT_BASE,
            )


_WITHOUT_BASE = (
    "evaluate only the released model (--no-base). The next run knows its base model if that is "
    "loaded with from_pretrained from a folder or the hub, and not changed before make_private"
)


def _groups(
    optimizer: torch.optim.Optimizer, names: Mapping[nn.Parameter, str]
) -> tuple[OptimizerGroup, ...] | None:
    """An optimizer's groups by the names of their parameters, or None if it is of another class."""
    if type(optimizer) is not _OPTIMIZERS.get(type(optimizer).__name__):
        return None
    groups = []
    for group in optimizer.param_groups:
        options = {n: _number(value) for n, value in group.items() if n not in _NOT_KEPT}
        # A schedule that warms up has set the rate of the first step, and noted the one given.
        options["lr"] = options.pop("initial_lr", options["lr"])
        try:
            encode(options)
        except UseError:
            return None
        held = tuple(names[parameter] for parameter in group["params"] if parameter in names)
        groups.append(OptimizerGroup(parameters=held, options=options))
    return tuple(groups)


def _number(value: Any) -> Any:
    """A learning rate that is kept in a tensor, as a number; anything else as it is."""
    return value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
