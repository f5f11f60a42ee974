"""Notices a backward pass of the loop's own while a private run is open.

A private step leaves a noisy gradient in ``.grad``. A ``loss.backward()`` that was left over from
the loop without privacy adds the exact gradient of somebody's text on top of it, and the optimizer
would apply both: the claim of the run would then be false, and nobody would see it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from userdp.errors import UseError
from userdp.gradients import trainable_parameters

_WHY = (
    "an exact gradient would be applied beside the noisy one that the step hands out, and the "
    "run's epsilon would say nothing of it"
)
_WAY_OUT = (
    "take loss.backward() out of the loop: each turn of the run has filled .grad. For a gradient "
    "on public text use torch.autograd.grad, or a copy.deepcopy of the model"
)


class StrayGradients:
    """Refuses backward passes into the parameters that a private run trains, until `close`.

    Guarantee: as long as it watches, ``backward()`` of any loss that reaches one of the parameters
    raises; and where the loop catches that error, the optimizer takes no update before the run has
    handed out its next gradient. What a loop does with ``.grad`` by itself is not looked at:
    clipping, scaling, or replacing it by what was computed from it is post-processing.

    torch calls these hooks only where a backward pass adds to ``.grad``, so that a step of the run,
    whose engines ask for gradients without adding them, costs nothing more.

    What no hook sees is a gradient that the loop computes in another way (`torch.autograd.grad`)
    and writes into ``.grad`` on purpose.

    Args:
        model: its trainable parameters are watched; sharded or not.
        optimizer: over them.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._own = False
        self._one_at_a_time = threading.Lock()
        self._strayed = False
        self._handles: list[Any] = [
            parameter.register_post_accumulate_grad_hook(self._added)  # type: ignore[no-untyped-call]
            for parameter in trainable_parameters(model).values()
        ]
        self._handles.append(_innermost(optimizer).register_step_pre_hook(self._before_update))

    @contextmanager
    def own_passes(self) -> Iterator[None]:
        """Within, the run computes: its passes may leave what they like, and it sets ``.grad``.

        Raises:
            UseError: another thread is within, whose step would be charged together with this one.
        """
        if not self._one_at_a_time.acquire(blocking=False):
            raise UseError(
                "two threads take steps of one run at the same time: what one computes would reach "
                "the gradients of the other, and one charge would pay for both",
                hint="iterate over a run in one thread; this step was not charged",
            )
        self._own = True
        try:
            yield
        finally:
            self._own = False
            self._one_at_a_time.release()
        self._strayed = False  # every gradient that was there has been replaced

    def close(self) -> None:
        """Watch no more; twice does no harm."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _added(self, parameter: Tensor) -> None:
        if self._own:
            return
        self._strayed = True
        parameter.grad = None
        raise UseError(
            f"a backward pass added to the gradients that a private run trains with: {_WHY}",
            hint=_WAY_OUT,
        )

    def _before_update(self, *_: Any) -> None:
        if self._strayed:
            raise UseError(
                "the optimizer was about to apply gradients to which a backward pass of the loop's "
                f"own has added: {_WHY}",
                hint=_WAY_OUT,
            )


def _innermost(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimizer that updates: wrappers, such as those of `accelerate`, have no hooks."""
    inner = getattr(optimizer, "optimizer", None)
    return _innermost(inner) if isinstance(inner, torch.optim.Optimizer) else optimizer
