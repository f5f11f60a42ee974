"""Guards of the weights of an open run: nothing but its own steps may change them.

Three ordinary accidents would make the claim of a run false, and nobody would see it:

- A ``loss.backward()`` that was left over from the loop without privacy adds the exact gradient of
  somebody's text to the noisy one in ``.grad``, and the optimizer applies both. `HeldModel` raises.
- Another run trains the same tensors meanwhile, over other people's text, and each releases what
  the other has learned. `require_free` refuses the second run.
- Other weights are loaded after the run was opened, or a checkpoint of another run, or weights that
  do not train are changed. `KnownWeights` compares digests before the first step and at the end.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from userdp.core.errors import UseError
from userdp.gradients import trainable_parameters
from userdp.gradients.shards import sharded_parts
from userdp.training.model_origin import digest_of_part, digest_of_weights
from userdp.training.optimizers import require_unstepped


class KnownWeights:
    """Compares a run's weights with those whose origin its claim tells (invariant 13).

    The ledger tells the origin of the weights at the opening. A run that resumes loads a checkpoint
    after it: the weights may then be any but those that another run has released.

    Args:
        model: at the weights that the run is opened with.
        resumes: the run goes on, so that its own weights may still be loaded.

    Attributes:
        first: the digest of the weights of the first step, if they are known.
        frozen: the digest of the weights that do not train; None of a sharded model, of which a
            process holds parts.
    """

    def __init__(self, model: nn.Module, *, resumes: bool) -> None:
        self._model = model
        moved = {id(one) for one in trainable_parameters(model).values()}
        every = model.named_parameters(remove_duplicate=False)  # what is tied to them trains too
        self._trained = {name for name, parameter in every if id(parameter) in moved}
        self.frozen = self._digest_of_frozen()
        self.first = None if resumes else digest_of_weights(model)
        self._known = False

    def require_known(
        self, optimizer: torch.optim.Optimizer, released: Callable[[list[str]], bool]
    ) -> None:
        """`UseError` where this process's first step would begin at weights of another origin.

        Args:
            optimizer: has taken no step before the first one.
            released: whether another run over these people released weights of such a digest.
        """
        if self._known:
            return
        weights, adapters = digest_of_weights(self._model), digest_of_part(self._model, base=False)
        if self.first not in (None, weights):
            raise UseError(
                "these are not the weights that the run was begun with, and it has taken no step: "
                "its claim would say nothing of what they had learned before",
                hint="load the weights that it is to begin with, then call make_private()",
            )
        if self.first is not None:
            require_unstepped(optimizer)
        elif released([weights, adapters]):
            raise UseError(
                "these weights were released by another run over the same people: going on from "
                "them would release what that run has learned, at the price of this one",
                hint="load this run's own checkpoint, or begin a new run from that model",
            )
        self._known = True  # not before: a loop that catches the error must not get by with it

    def require_frozen(self) -> None:
        """`UseError` where weights have changed that the run does not train."""
        if self.frozen != self._digest_of_frozen():
            raise UseError(
                "weights or buffers that this run does not train have changed since it was opened, "
                "and the claim would say nothing of that",
                hint="put them back, or train them by the run's own steps",
            )

    def _digest_of_frozen(self) -> str | None:
        if sharded_parts(self._model):
            return None
        return digest_of_weights(self._model, only=lambda name: name not in self._trained)


class HeldModel:
    """The tensors that an open run trains: until `close` nothing else may train them.

    Guarantee: until then ``backward()`` of any loss that reaches one of the parameters raises, and
    leaves no gradient in it; and `require_free` refuses other runs. What a loop does with ``.grad``
    by itself is not looked at: clipping, scaling, or replacing it by what was computed from it is
    post-processing.

    torch calls these hooks only where a backward pass adds to ``.grad``, so that a step of the run,
    whose engines ask for gradients without adding them, costs nothing more.

    Args:
        model: its trainable parameters are watched; sharded or not.
    """

    def __init__(self, model: nn.Module) -> None:
        self._own, self.trained = False, _trained(model)
        self._handles: list[Any] = [
            parameter.register_post_accumulate_grad_hook(self._added)  # type: ignore[no-untyped-call]
            for parameter in trainable_parameters(model).values()
        ]
        _open.add(self)

    @contextmanager
    def own_passes(self) -> Iterator[None]:
        """Within, the run computes: its passes may leave what they like, and it sets ``.grad``."""
        self._own = True
        try:
            yield
        finally:
            self._own = False

    def share(self) -> None:
        """Let other runs of this process train the model too."""
        self.trained = set()

    def close(self) -> None:
        """Let go of the model; twice does no harm."""
        self.share()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _added(self, parameter: Tensor) -> None:
        if self._own:
            return
        parameter.grad = None
        raise UseError(
            "a backward pass added an exact gradient to the noisy one that a private run trains "
            "with, and its epsilon would say nothing of that",
            hint="take loss.backward() out of the loop: each turn of the run has filled .grad. For "
            "a gradient on public text use torch.autograd.grad, or a copy.deepcopy of the model",
        )


_open: weakref.WeakSet[HeldModel] = weakref.WeakSet()


def require_free(model: nn.Module) -> None:
    """Refuse a model of which an open run of this process trains a tensor.

    Models that share tensors, by tying or as adapters over one base, are one model in what they
    share. What one of them only reads may train in another; its run sees that
    before it releases anything.

    Raises:
        UseError: names the way out.
    """
    if any(_trained(model) & held.trained for held in _open):
        raise UseError(
            "another private run of this process is open, and trains weights of this model: each "
            "would release what the other has learned, and neither claim would say so",
            hint="close() the other run first, or train a copy.deepcopy of the model",
        )


def _trained(model: nn.Module) -> set[int]:
    return {id(parameter) for parameter in trainable_parameters(model).values()}
