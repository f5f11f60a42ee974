"""What is held where a walk over attributes does not lead: in modules, tensors and scripts.

Modules of somebody's own are reached by whatever a function may import; a tensor's numbers are read
where no count of writes tells of them; and a scripted module keeps its attributes outside Python.
"""

from __future__ import annotations

import code
import dataclasses
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.gradients.held_places import (
    Build,
    Place,
    module_of_own,
    of_model,
    of_source,
    require_seen,
)
from userdp.errors import UseError
from userdp.gradients import Units, causal_lm_loss, get_engine, held_state, notes
from userdp.gradients.held_state import HeldState
from userdp.gradients.parts import is_library


def of_tensor(make: Callable[[], Tensor]) -> Build:
    """A model's small tensor, written to where no count of writes sees it."""

    def build() -> Place:
        model, held = nn.Module(), make()
        if isinstance(held, nn.Parameter):
            model.scale = held
        else:
            model.register_buffer("scale", held)
        return of_model(
            model, lambda: complex(held.detach()), lambda: held.data.copy_(-held.detach())
        )

    return build


class Named(nn.Parameter):
    """A parameter of a class of somebody's own."""


class Counting(nn.Module):
    """A module that is scripted: its attributes lie beyond Python then."""

    def __init__(self) -> None:
        super().__init__()
        self.top = 1.0
        self.seen = [1]

    def forward(self, x: Tensor) -> Tensor:
        return x * self.top


def scripted(change: Callable[[Any], object]) -> Build:
    def build() -> Place:
        model = nn.Module()
        model.inner = torch.jit.script(Counting())
        inner: Any = model.inner
        return of_model(model, lambda: (inner.top, list(inner.seen)), lambda: change(inner))

    return build


class OfClasses(type):
    """A class of classes."""

    sign = 1.0


class Signed(metaclass=OfClasses):
    pass


def on_a_metaclass() -> Place:
    OfClasses.sign = 1.0

    def loss(*rows: Any) -> Tensor:
        return torch.zeros(1) * type(Signed).sign

    return Place(
        lambda: OfClasses.sign,
        lambda: setattr(OfClasses, "sign", -1.0),
        nn.Linear(2, 2),
        loss,
    )


def waiting() -> Place:
    def inner() -> Iterator[float]:
        top = 1.0
        while True:
            given = yield top
            top = top if given is None else given

    def outer() -> Iterator[float]:
        yield from inner()

    model, held = nn.Module(), outer()
    next(held)
    model.held = held
    change: Any = held
    return of_model(
        model, lambda: held.gi_yieldfrom.gi_frame.f_locals["top"], lambda: change.send(-1.0)
    )


def made_by_a_function() -> Place:
    kind: Any = dataclasses.make_dataclass("Kept", [])
    kind.top = 1.0
    model = nn.Module()
    model.held = kind()
    return of_model(model, lambda: kind.top, lambda: setattr(kind, "top", -1.0))


def a_module_that_a_model_holds() -> Place:
    model, state = nn.Module(), module_of_own("proj.state")
    model.ops = state
    return of_model(model, lambda: state.TOP[0], lambda: setattr(state, "TOP", [-1.0]))


pytestmark = pytest.mark.usefixtures("modules_put_back")


KINDS: dict[str, Build] = {
    "a parameter's number, past its count": of_tensor(lambda: nn.Parameter(torch.tensor(4.0))),
    "a frozen parameter's, of a class of its own": of_tensor(
        lambda: Named(torch.tensor(4.0), requires_grad=False)
    ),
    "a complex number's": of_tensor(lambda: torch.tensor(4.0 + 1j)),
    "a buffer's": of_tensor(lambda: torch.tensor(4.0)),
    "a scripted module's number": scripted(lambda inner: setattr(inner, "top", 2.0)),
    "a scripted module's list": scripted(lambda inner: setattr(inner, "seen", [2])),
    "a class of a class": on_a_metaclass,
    "a module in a module": of_source(
        "import proj.state\ndef loss(*rows): return proj.state.TOP[0]"
    ),
    "a function in a module in a module": of_source(
        "import proj.state\ndef loss(*rows): return proj.state.top()"
    ),
    "a module that a function imports": of_source(
        "def loss(*rows):\n    from proj.state import TOP\n    return TOP[0]"
    ),
    "a module of its own package": of_source(
        "def loss(*rows):\n    from .state import top\n    return top()"
    ),
    "its package's module": of_source(
        "def loss(*rows):\n    from . import state\n    return state.TOP[0]"
    ),
    "a function that wraps a library's": of_source(
        "import functools, json, proj.state\n@functools.wraps(json.dumps)\n"
        "def loss(*rows): return proj.state.top()"
    ),
    "a module imported by its name": of_source(
        "import importlib\ndef loss(*rows):\n"
        "    return importlib.import_module('proj.state').TOP[0]"
    ),
    "a module among those loaded": of_source(
        "import sys\ndef loss(*rows): return sys.modules['proj.state'].TOP[0]"
    ),
    "an attribute asked for by its name": of_source(
        "import proj.state\ndef loss(*rows): return getattr(proj.state, 'TOP')[0]"
    ),
    "what a module answers for": of_source(
        "import proj.state\nproj.state.__getattr__ = lambda name: proj.state.top\n"
        "def loss(*rows): return proj.state.lazy()"
    ),
    "what a generator waits for": waiting,
    "a class made by a function": made_by_a_function,
    "a module by a default": of_source(
        "import proj.state\ndef loss(*rows, of=proj.state): return of.TOP[0]"
    ),
    "a module that a model holds": a_module_that_a_model_holds,
}


@pytest.mark.parametrize("name", ["code", "datasets", "proj"])
def test_invariant_3_ones_own_module_is_no_library_by_its_name(name: str) -> None:
    state = module_of_own(name, "class Meter: pass\nTOP = Meter()\ndef loss(*rows): return TOP\n")
    assert not is_library(state.loss)
    state.TOP.total = 0.0
    held = HeldState(nn.Linear(2, 2), state.loss)
    state.TOP.total = 1.0
    with pytest.raises(UseError, match="changed during the forward pass"):
        held.require_unchanged()


@pytest.mark.parametrize("of", [code.interact, np.zeros_like, nn.functional.dropout, nn.Module])
def test_what_is_installed_is_a_library(of: Any) -> None:
    assert is_library(of)


@pytest.mark.parametrize("kind", KINDS)
def test_invariant_3_what_is_kept_there_is_seen(kind: str) -> None:
    require_seen(KINDS[kind]())


class Largest(nn.Module):
    """Keeps the largest number so far where no count of writes tells of it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(11, 4), nn.Linear(4, 11)
        self.top = nn.Parameter(torch.tensor(1.0))
        self.keeping = True

    def forward(self, input_ids: Tensor, **rest: Any) -> Any:
        hidden = self.table(input_ids)
        if self.keeping:
            self.top.data.copy_(torch.maximum(self.top.data, hidden.detach().abs().max()))
        return types.SimpleNamespace(logits=self.head(hidden / self.top))


@pytest.mark.parametrize("engine", ["reference", "bookkeeping", "vmap"])
def test_invariant_3_on_an_accelerator_small_tensors_are_compared_at_the_end_of_a_step(
    monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    monkeypatch.setattr(notes, "_numbers", lambda value: ())  # as of tensors that are not here
    units = Units.from_rows([[[1, 2, 3]], [[4, 5, 6]]])
    model = Largest()
    model.keeping = False
    get_engine(engine)(model, causal_lm_loss, units, l2_clip_norm=1.0)
    model.keeping = True
    twin = get_engine(engine)(model, causal_lm_loss, units, l2_clip_norm=1.0)
    assert float(model.top.detach()) > 1  # broken twin: nobody saw it
    assert bool(twin.norms.isfinite().all())
    monkeypatch.setattr(held_state, "_is_far", lambda value: True)
    with torch.no_grad():
        model.top.fill_(1.0)
    with pytest.raises(UseError, match="a small tensor that the model"):
        get_engine(engine)(model, causal_lm_loss, units, l2_clip_norm=1.0)
    model.keeping = False
    get_engine(engine)(model, causal_lm_loss, units, l2_clip_norm=1.0)
