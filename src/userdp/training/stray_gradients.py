"""Who else may reach the parameters of an open run: no backward pass, and no other run.

A private step leaves a noisy gradient in ``.grad``. A ``loss.backward()`` that was left over from
the loop without privacy adds the exact gradient of somebody's text on top of it, and the optimizer
would apply both: the claim of the run would then be false, and nobody would see it.

A run also asks what its model descends from when it begins. Another run that trains the same
tensors meanwhile, over other people's text, would put what it learns into weights whose ledger says
nothing of it: a tensor trains in one private run at a time.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from userdp.core.errors import UseError
from userdp.gradients import trainable_parameters


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
