"""Something that a model or a loss holds, and how it becomes another: what tests of it share."""

from __future__ import annotations

import itertools
import sys
import types
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import pytest
import torch
from torch import nn

from userdp.errors import UseError
from userdp.gradients.held_state import HeldState


class Place(NamedTuple):
    """A model and a loss that hold something, how it is told, and how it becomes another."""

    tell: Callable[[], object]
    change: Callable[[], object]
    model: nn.Module
    loss: Callable[..., object]


def of_model(model: nn.Module, tell: Callable[[], object], change: Callable[[], object]) -> Place:
    return Place(tell, change, model, lambda *rows: torch.zeros(1))


def of_loss(held: object, tell: Callable[[], object], change: Callable[[], object]) -> Place:
    return Place(tell, change, nn.Linear(2, 2), lambda *rows, extra=held: torch.zeros(1))


Build: TypeAlias = Callable[[], Place]


def require_seen(place: Place) -> None:
    """Whether a change there is refused, and nothing before it."""
    held = HeldState(place.model, place.loss)
    held.require_unchanged()
    before = place.tell()
    place.change()
    assert place.tell() != before
    with pytest.raises(UseError, match="changed during the forward pass"):
        held.require_unchanged()


def is_somebodys(module: object) -> bool:
    return str(vars(module).get("__file__")).startswith("/somebodys/")


def module_of_own(name: str, source: str = "TOP = [1.0]\n\ndef top():\n    return TOP[0]\n") -> Any:
    """Somebody's own module, imported under this name; its packages too."""
    for package in itertools.accumulate(name.split("."), lambda one, two: f"{one}.{two}"):
        found = sys.modules.get(package)
        made = found if found is not None and is_somebodys(found) else types.ModuleType(package)
        made.__file__ = f"/somebodys/{package.replace('.', '/')}.py"
        parent, _, last = package.rpartition(".")
        if parent:
            setattr(sys.modules[parent], last, made)
        sys.modules[package] = made
    vars(made)["__package__"] = name.rpartition(".")[0]
    exec(source, vars(made))
    return made


def of_source(source: str, own: str = "proj.state") -> Build:
    """A loss of this source, in a module beside one of that name, which it can reach."""

    def build() -> Place:
        state = module_of_own(own)
        loss: Any = module_of_own("proj.losses" if own.startswith("proj") else own, source).loss
        held = vars(state)
        return Place(
            lambda: held["TOP"][0], lambda: held["TOP"].__setitem__(0, -1.0), nn.Linear(2, 2), loss
        )

    return build
