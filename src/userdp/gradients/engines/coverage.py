"""Which layers keep the units of a model from sharing a pass, by name: asked on made-up rows.

`choice.why_alone` says whether a model's units need passes of their own. This says where in the
model the reason lies, for people: a user who reads "24 layers model.layers.*.mixer (MambaMixer)"
knows what to freeze. No engine decides anything by it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from userdp.gradients.certificate.coupling import evaluating
from userdp.gradients.certificate.made_up import CANNOT_RUN, RAGGED, made_up
from userdp.gradients.certificate.places.steps import jumps
from userdp.gradients.certificate.rows import Rows
from userdp.gradients.certificate.state import State
from userdp.gradients.engines.passes import layout_of
from userdp.gradients.engines.tape import NotCoveredError, Tape, Workspace
from userdp.gradients.engines.uses import Layout
from userdp.gradients.losses import Loss
from userdp.gradients.models import trainable_parameters
from userdp.out_of_memory import ran_out_of_memory

_SHOWN = 3
"""Kinds of layers that `Coverage.told` names; more are counted."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A kind of layer that no rule covers, or in which rows were last seen apart.

    Attributes:
        modules: names of such layers in the model, in its order.
        kind: their class.
        reason: what was not covered, in words.
    """

    modules: tuple[str, ...]
    kind: str
    reason: str

    def __str__(self) -> str:
        patterns = dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name) for name in self.modules)
        count = len(self.modules)
        where = ", ".join(patterns) or "model"
        return f"{f'{count} layers ' if count > 1 else ''}{where} ({self.kind}): {self.reason}"


@dataclass(frozen=True, slots=True)
class Coverage:
    """What of a model the rules of the batched engines cover.

    Attributes:
        obstacles: empty where everything is covered on made-up rows.
        uncovered_only: whether each obstacle is a trainable parameter without a rule, so that
            freezing these is enough.
        parameters: trainable ones, in numbers; uncovered: those of them without a rule.
    """

    obstacles: tuple[Obstacle, ...]
    uncovered_only: bool
    parameters: int
    uncovered: int

    def told(self) -> str:
        """The obstacles in one line; empty where there are none."""
        more = len(self.obstacles) - _SHOWN
        rest = [f"and {more} other kinds of layers"] if more > 0 else []
        return "; ".join([*map(str, self.obstacles[:_SHOWN]), *rest])


def coverage(model: nn.Module, loss: Loss, *, masked: bool) -> Coverage:
    """Which layers of ``model`` the rules cover; its rows and its ``.grad`` are nobody's.

    Args:
        model: at any weights; looked at in evaluation mode.
        loss: per-row loss.
        masked: whether it is given targets.
    """
    parameters = trainable_parameters(model)
    device = next(iter(parameters.values())).device
    units = made_up(model, RAGGED[0], masked=masked, device=device)
    tape = _Noting(parameters, layout_of(units), State(model, loss).tensors())
    uncovered: list[str] = []
    failed: list[Obstacle] = []
    with evaluating(model), tape.naming(model):
        try:
            tape.run(model, loss, units, owners=tape.layout)
        except NotCoveredError as error:
            uncovered = [name for name in error.names if name in parameters]
        except CANNOT_RUN as error:
            if ran_out_of_memory(error):
                raise
            told = f"made-up rows could not be run ({type(error).__name__})"
            failed = [Obstacle(("",), type(model).__name__, told)]
    # A layer behind a place where rows are lost has no rule either, whatever it is.
    lost = [*failed, *tape.lost(model)]
    without_rule = [] if lost else list(_without_rule(model, uncovered))
    return Coverage(
        obstacles=tuple(lost or without_rule),
        uncovered_only=bool(without_rule),
        parameters=sum(p.numel() for p in parameters.values()),
        uncovered=sum(parameters[name].numel() for name in uncovered),
    )


def _without_rule(model: nn.Module, names: list[str]) -> Iterator[Obstacle]:
    """The layers of these parameters, one obstacle for each class and set of parameters."""
    modules = dict(model.named_modules())
    by_module: dict[str, list[str]] = {}
    for name in names:
        home, _, own = name.rpartition(".")
        by_module.setdefault(home, []).append(own)
    kinds: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for home, owned in by_module.items():
        kinds.setdefault((type(modules[home]).__name__, tuple(owned)), []).append(home)
    for (kind, parameters), homes in kinds.items():
        yield Obstacle(tuple(homes), kind, f"no per-unit rule for its {', '.join(parameters)}")


class _Noting(Tape):
    """A tape that remembers in which module, and by which function, rows were lost sight of."""

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], layout: Layout, held: Iterable[Tensor]
    ) -> None:
        super().__init__(parameters, layout, Workspace(held))
        self._inside: list[nn.Module] = []
        self._found: tuple[str, str] | None = None

    def rows_of(self) -> Rows:
        return _NotingRows(self.layout.rows, self._workspace.held, self._note)

    @contextmanager
    def naming(self, model: nn.Module) -> Iterator[None]:
        """Within, it is known which module of ``model`` computes."""

        def enter(module: nn.Module, arguments: object) -> None:
            self._inside.append(module)

        def leave(module: nn.Module, arguments: object, result: object) -> None:
            self._inside.pop()

        handles = []
        for module in model.modules():
            handles.append(module.register_forward_pre_hook(enter))
            handles.append(module.register_forward_hook(leave, always_call=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _note(self, what: str) -> None:
        kind = type(self._inside[-1]).__name__ if self._inside else "the loss"
        self._found = self._found or (kind, what)

    def lost(self, model: nn.Module) -> Iterator[Obstacle]:
        """The first kind of layer in which rows were lost sight of."""
        if self._found is not None:
            kind, what = self._found
            alike = [
                name for name, module in model.named_modules() if type(module).__name__ == kind
            ]
            yield Obstacle(tuple(alike or [""]), kind, what)


class _NotingRows(Rows):
    """Rows that tell when a place is lost, or when Python reads data."""

    def __init__(self, count: int, held: Iterable[Tensor], note: Callable[[str], None]) -> None:
        super().__init__(count, held)
        self._note_lost = note

    def run(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        read = self._read
        result = super().run(function, args, kwargs)
        if not (read or self._proved):  # what backward passes read is not told
            lost = [t for t in tree_leaves(result) if isinstance(t, Tensor) and jumps(function, t)]
            # Nobody asks at which place a largest number stands, but it is answered, too.
            tipped = function.__name__ not in ("max", "min") and any(
                self.place_of(t) is None for t in lost
            )
            if self._read or (tipped and _of_reals(args)):
                self._note_lost(_reason(function, args, result))
        return result


def _of_reals(values: Iterable[object]) -> bool:
    return any(isinstance(t, Tensor) and t.is_floating_point() for t in values)


def _reason(function: Callable[..., Any], args: Iterable[object], result: object) -> str:
    name = function.__name__
    if name == "__get__":  # of a property
        name = getattr(getattr(function, "__self__", None), "__name__", name)
    made = [t for t in tree_leaves(result) if isinstance(t, Tensor)]
    if not made and result is not None:
        return f"Python reads somebody's numbers by {name}"
    if _of_reals(args) and any(jumps(function, t) for t in made):
        return f"its choice could be tipped by the rounding of a batch ({name})"
    return f"rows are not followed through {name}"
