"""Guards of an open run: its optimizer trains the model, and nothing else changes its weights.

Ordinary accidents would spend an epsilon for nothing, or make the claim of a run false, and nobody
would see it:

- The optimizer holds other tensors than the model trains, or its updates change nothing.
  `require_same_parameters` and `movement_since` refuse both.
- A ``loss.backward()`` that was left over from the loop without privacy adds the exact gradient of
  somebody's text to the noisy one in ``.grad``, and the optimizer applies both. `HeldModel` raises.
- Another run trains the same tensors meanwhile, over other people's text, and each releases what
  the other has learned. `require_free` refuses the second run.
- Other weights are loaded after the run was opened, or a checkpoint of another run, or weights that
  do not train are changed. `KnownWeights` compares digests before the first step and at the end.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from userdp.core.errors import FailureError, UseError
from userdp.gradients import trainable_parameters
from userdp.gradients.shards import sharded_parts
from userdp.training.lora import uncompiled
from userdp.training.model_origin import ModelDigests, digests_of

_WATCHED = 4096
"""Numbers of each parameter that `movement_since` compares."""


class KnownWeights:
    """Compares a run's weights with those whose origin its claim tells (invariant 13).

    The ledger tells the origin of the weights at the opening. A run that resumes loads a checkpoint
    after it: the weights may then be any but those that another run has released.

    Args:
        model: at the weights that the run is opened with.
        resumes: the run goes on, so that its own weights may still be loaded.

    Attributes:
        opened: digests of the weights at the opening.
        first: the digest of the weights of the first step, if they are known.
        frozen: the digest of the weights that do not train; None of a sharded model, of which a
            process holds parts.
    """

    def __init__(self, model: nn.Module, *, resumes: bool) -> None:
        self._model, self._known = model, False
        self._trained = _that_train(model)
        self.opened = digests_of(model)
        self.first = None if resumes else self.opened.whole
        self.frozen = self._frozen_of(self.opened)

    def _frozen_of(self, digests: ModelDigests) -> str | None:
        return None if sharded_parts(self._model) else digests.without(self._trained)

    def require_known(
        self, optimizer: torch.optim.Optimizer, released: Callable[[list[str]], bool]
    ) -> None:
        """`UseError` where this process's first step would begin at weights of another origin, or
        where other parameters train than when the run was opened.

        Args:
            optimizer: has taken no step before the first one.
            released: whether another run over these people released weights of such a digest.
        """
        if _that_train(self._model) != self._trained:
            raise UseError(
                "other parameters train than when the run was opened, and would not be released",
                hint="put requires_grad back; or open a run of its own for each set",
            )
        if self._known:
            return
        now = digests_of(self._model)
        if self.first not in (None, now.whole):
            raise UseError(
                "these are not the weights that the run was begun with: no claim knows of others",
                hint="load the weights that it is to begin with, then call make_private()",
            )
        if self.first is not None:
            require_unstepped(optimizer)
        elif released([now.whole, now.adapters]):
            raise UseError(
                "these weights were released by another run over the same people: going on from "
                "them would release what that run has learned, at the price of this one",
                hint="load this run's own checkpoint, or begin a new run from that model",
            )
        self._known = True  # not before: a loop that catches the error must not get by with it

    def require_frozen(self) -> None:
        """`UseError` where weights have changed that the run does not train."""
        if self.frozen != self._frozen_of(digests_of(self._model)):
            raise UseError(
                "weights or buffers that this run does not train have changed since it was opened, "
                "and the claim would say nothing of that",
                hint="put them back, or train them by the run's own steps",
            )


def _that_train(model: nn.Module) -> set[str]:
    moved = {id(one) for one in trainable_parameters(model).values()}
    # What is tied to them trains too.
    every = uncompiled(model).named_parameters(remove_duplicate=False)
    return {name for name, parameter in every if id(parameter) in moved}


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


def require_same_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer that holds other tensors than the model trains, in either direction.

    Frozen weights of the model may be among them (``AdamW(model.parameters())``): an optimizer
    leaves alone whatever has no gradient, so those that an earlier loop left there are dropped.

    Raises:
        UseError: names what is missing. An ε would be spent on parameters that never move, or
            something would move that never was clipped. Or a step needs a closure.
    """
    ours = trainable_parameters(model)
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise UseError(
            f"{type(optimizer).__name__} wants a closure, and a private step has one gradient",
            hint="take an optimizer that steps by gradients, such as torch.optim.AdamW",
        )
    if missing := [name for name, parameter in ours.items() if id(parameter) not in held]:
        raise UseError(
            f"the optimizer does not hold {len(missing)} of the model's {len(ours)} trainable "
            f"parameters ({', '.join(missing[:3])}…): they would never move",
            hint="build the optimizer after adapters were attached and the model was moved",
        )
    if others := held - set(map(id, model.parameters())):
        raise UseError(
            f"the optimizer holds {len(others)} tensors that are no parameters of the model",
            hint="give it only those of this model: others would move without clipping or noise",
        )
    for parameter in model.parameters():
        if not parameter.requires_grad and id(parameter) in held:
            parameter.grad = None


def warning_of_half_precision(model: nn.Module) -> str | None:
    """A warning where weights train in half precision; None where none of them does.

    An update of Adam is about as large as the learning rate. A weight of bfloat16 keeps 8 bits, so
    that one that is 500 times as large as the learning rate stays where it is.
    """
    dtypes = {parameter.dtype for parameter in trainable_parameters(model).values()}
    if not dtypes & {torch.bfloat16, torch.float16}:
        return None
    return (
        "weights train in half precision: most updates are rounded away, and epsilon is spent on "
        "weights that stand still. Load them with from_pretrained(…, dtype=torch.float32); "
        "bf16=True computes in bfloat16 all the same"
    )


def movement_since(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], bool]:
    """A function that says, after an update, whether it has moved a parameter since now.

    It compares a part of each trainable parameter; noise reaches every coordinate, so an update
    that was applied shows in any part. A learning rate of 0 (a warm-up may begin there) excuses a
    step. Where nothing has moved otherwise it raises `FailureError`.
    """

    def parts() -> list[Tensor]:
        parameters = trainable_parameters(model).values()
        return [one.detach().reshape(-1)[:_WATCHED].clone() for one in parameters]

    def idle() -> bool:
        return all(float(group.get("lr", 1.0)) == 0 for group in optimizer.param_groups)

    before, excused = parts(), idle()

    def moved() -> bool:
        if not all(map(torch.equal, parts(), before)):
            return True
        if excused or idle():
            return False
        raise FailureError(
            "no trainable parameter moved in the update: epsilon would be spent for nothing",
            hint="call optimizer.step() once per step, clear .grad behind it, and check the rate",
        )

    return moved


def require_unstepped(optimizer: torch.optim.Optimizer) -> None:
    """`UseError` where an optimizer holds a state of steps that no run has paid for.

    One that is set up when it is made, as Adagrad's, counts no step yet.
    """
    if any(float(state.get("step", 1)) > 0 for state in optimizer.state.values() if state):
        raise UseError(
            "the optimizer has a state of earlier steps, perhaps on people's text",
            hint="make a new optimizer for a new run",
        )
