"""What a layer's rule is given and what it gives: the frame of `userdp.gradients.engines.rules`.

A rule stands in for one of torch's functions while a tape is watching. It answers None where it
does not apply; torch's own function then runs, and a trainable parameter in it is found by its
ordinary gradient. A rule applies only to inputs whose first dimension counts rows, or rows and
positions flattened, by the code that made them (`certificate.rows`): a shape proves nothing.

Rules are autograd functions and not hooks, so that activation checkpointing recomputes them like
any other.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from userdp.gradients.certificate.places import Place, tensors_in
from userdp.gradients.engines.uses import Layout, Use
from userdp.gradients.modes import unwatched


class Watcher(Protocol):
    """The tape, as a rule sees it.

    Attributes:
        anchor: a tensor that requires a gradient, so that a layer without other such inputs has a
            backward pass too.
        layout: which unit owns which row.
        told_names: of all tensors that calls are told by name, by their ids.
    """

    anchor: Tensor
    layout: Layout
    told_names: dict[int, str]

    def name_of(self, tensor: object) -> str | None:
        """The trainable parameter's name; None for everything else."""

    def place_of(self, tensor: Tensor) -> Place | None:
        """Where rows lie in ``tensor``; None where that is unknown."""

    def mark(self, tensor: Tensor, place: Place) -> Tensor:
        """Note where rows lie in ``tensor``, which a rule made."""

    def name_made(self, result: object) -> bool:
        """Name what parameters and constants alone made, and what passes gradients on to them."""

    def keep(self, name: str, use: Use) -> None:
        """Keep one use of parameter ``name``."""


Rule: TypeAlias = Callable[..., Tensor | None]

RULES: dict[Callable[..., Any], Rule] = {}
"""By the function of torch that they stand in for; called with the tape and its arguments."""

ModuleRule: TypeAlias = Callable[[nn.Module, Watcher], Callable[..., Any] | None]

_MODULE_RULES: list[tuple[Callable[[type[nn.Module]], bool], ModuleRule]] = []
"""Give a module's forward while a tape watches, where it differs from the module's own."""


def stands_in_for(function: Callable[..., Any]) -> Callable[[Rule], Rule]:
    """Register a rule for one of torch's functions."""

    def register(rule: Rule) -> Rule:
        RULES[function] = rule
        return rule

    return register


def replaces(fits: Callable[[type[nn.Module]], bool]) -> Callable[[ModuleRule], ModuleRule]:
    """Register a rule for modules of the classes that fit."""

    def register(rule: ModuleRule) -> ModuleRule:
        _MODULE_RULES.append((fits, rule))
        return rule

    return register


def patches(model: nn.Module, tape: Watcher) -> dict[nn.Module, Callable[..., Any]]:
    """The forwards by which rules replace those of modules while ``tape`` watches."""
    modules = [module for module in model.modules() if "forward" not in vars(module)]
    kinds = set(map(type, modules))  # of which there are few
    rules = {kind: [rule for fits, rule in _MODULE_RULES if fits(kind)] for kind in kinds}
    found = {module: rule(module, tape) for module in modules for rule in rules[type(module)]}
    return {module: forward for module, forward in found.items() if forward is not None}


def is_bare(module: nn.Module) -> bool:
    """Whether ``module`` has its class's own forward, and nobody's hooks around it."""
    return "forward" not in vars(module) and not (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


class Layer(ABC):
    """A layer as it runs while a tape watches: same value, same gradient for its input.

    In place of the parameters' summed gradients it hands the tape what is needed per unit.
    """

    __slots__ = ()
    least_dims: ClassVar[int] = 2
    """Dimensions that its input must have, so that the first one can count rows."""

    @abstractmethod
    def forward(self, x: Tensor, *parameters: Any) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """The layer's value, the same numbers as torch's; and what `backward` needs."""

    @abstractmethod
    def backward(self, saved: Any, gradient: Tensor, needed: bool) -> Tensor | None:
        """Hand the parameters' parts to the tape; return the input's gradient where needed."""


class _Watched(torch.autograd.Function):
    """Runs a `Layer`."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, layer: Layer, x: Tensor, *parameters: Any) -> Tensor:
        ctx.layer, ctx.others = layer, len(parameters)
        value, saved = layer.forward(x, *parameters)
        ctx.save_for_backward(*saved)
        return value

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # may compute a checkpointed layer again, which is watched
        # No mode watches within: the gradients' own arithmetic is not the model's.
        with unwatched(), torch.no_grad():
            to_input = ctx.layer.backward(saved, gradients[0], ctx.needs_input_grad[2])
        return None, None, to_input, *[None] * ctx.others


RUN: Callable[..., Tensor] = _Watched.apply
"""``RUN(tape.anchor, layer, x, *parameters)``: the layer's value, on the tape."""


def apply(tape: Watcher, layer: Layer, x: Tensor, *parameters: Tensor | None) -> Tensor | None:
    """``layer`` over ``x``, whose first dimension stays.

    None where that counts no rows, or where a parameter is no constant: rows' data in a bias, say.
    """
    inner = owned(tape, x) if x.dim() >= layer.least_dims else None
    if inner is None or not all(p is None or constant(tape, p) for p in parameters):
        return None
    stacked = x if inner == 1 else x.reshape(tape.layout.rows, inner, *x.shape[1:])
    value = RUN(tape.anchor, layer, stacked, *(p if p is None else p.detach() for p in parameters))
    return placed(tape, x, value if inner == 1 else value.flatten(0, 1))


def constant(tape: Watcher, tensor: Tensor) -> bool:
    """Whether no row's data reached ``tensor``; what is made of parameters alone has a name."""
    if tape.layout.rows == 1 or tape.name_of(tensor) is not None:
        return True
    place = tape.place_of(tensor)
    return place is not None and place.constant


def at_most_one_of_rows(tape: Watcher, values: Iterable[object]) -> bool:
    """Whether a rule may stand in for a call of ``values``: one tensor at most is of rows.

    That is the input, which has a number for each row at least. `apply` looks at parameters; what
    else a function takes for a number (an epsilon, a scale) may be a tensor too.
    """
    others = [tensor for tensor in tensors_in(values) if not constant(tape, tensor)]
    return not others or (len(others) == 1 and others[0].numel() > 1)


def names_of(tape: Watcher, *parameters: Tensor | None) -> tuple[str | None, ...] | None:
    """The names of a layer's parameters.

    None where none of them is trained, or where a gradient flows through one that is no parameter.
    """
    names = tuple(tape.name_of(p) for p in parameters)
    through = any(
        name is None and p is not None and p.requires_grad
        for name, p in zip(names, parameters, strict=True)
    )
    return None if through or not any(names) else names


def owned(tape: Watcher, x: Tensor) -> int | None:
    """How many indices of the first dimension belong to each row; None where it counts no rows.

    A constant of rows x ... (positions, say) is taken at its word: its values are nobody's, and
    `placed` says whose each place is from here on, which the proof of the pass then checks.
    """
    rows = tape.layout.rows
    if x.dim() < 1:
        return None
    if rows == 1:
        return x.shape[0]
    place = tape.place_of(x)
    if place is None:
        return None
    if place.constant:
        return 1 if x.dim() >= 2 and x.shape[0] == rows else None
    return place.inner if place.dim == 0 and place.outer == 1 else None


def by_row(tape: Watcher, x: Tensor) -> bool:
    """Whether ``x`` is (rows, ..., width), each row's own."""
    return x.dim() >= 2 and x.shape[0] == tape.layout.rows and owned(tape, x) == 1


def placed(tape: Watcher, x: Tensor, value: Tensor) -> Tensor:
    """``value``, each place of whose first dimension belongs to the row that it has in ``x``."""
    inner = owned(tape, x)
    assert inner is not None
    return tape.mark(value, Place(0, inner))
