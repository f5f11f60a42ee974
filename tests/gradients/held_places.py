"""Something that a model or a loss holds, and how it becomes another: what tests of it share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

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
