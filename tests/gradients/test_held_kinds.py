"""Wherever a model or a loss may keep something, it is seen that something else is kept there now.

Each kind keeps one of two things, by which an answer could turn its sign for the next user.
"""

from __future__ import annotations

import array
import collections
import ctypes
import enum
import io
import itertools
import random
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.gradients.held_places import Build, Place, of_loss, of_model, require_seen
from userdp.gradients import held_state
from userdp.gradients.held_state import HeldState


def an_alias() -> Place:
    model = nn.Module()
    model.experts = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    model.current = model.experts[0]
    return of_model(
        model,
        lambda: model.current is model.experts[0],
        lambda: setattr(model, "current", model.experts[1]),
    )


def no_buffer() -> Place:
    model = nn.Module()
    return of_model(
        model, lambda: list(model._buffers), lambda: model.register_buffer("flag", None)
    )


def no_module() -> Place:
    model = nn.Module()
    model.add_module("flag", None)
    return of_model(model, lambda: len(model._modules), lambda: model.add_module("other", None))


def persistence() -> Place:
    model = nn.Module()
    model.register_buffer("sign", torch.ones(1))
    return of_model(
        model,
        lambda: "sign" in model.state_dict(),
        lambda: model._non_persistent_buffers_set.add("sign"),
    )


def swapped_buffers() -> Place:
    model = nn.Module()
    model.register_buffer("one", torch.ones(1 << 17))
    model.register_buffer("two", -torch.ones(1 << 17))
    return of_model(
        model,
        lambda: float(model.one[0]),  # type: ignore[index]
        lambda: torch.utils.swap_tensors(model.one, model.two),
    )


def a_truth() -> Place:
    model = nn.Module()
    model.sign = 1  # type: ignore[assignment]
    return of_model(model, lambda: model.sign is True, lambda: setattr(model, "sign", True))


class Sign:
    def __init__(self) -> None:
        self.value = 1.0


def on_a_class(make: Callable[[type], None], change: Callable[[type], object]) -> Build:
    def build() -> Place:
        class Model(nn.Module):
            def answer(self) -> object:
                return None

        make(Model)
        model: Any = Model()
        return of_model(model, lambda: model.answer(), lambda: change(Model))

    return build


def _object(kind: Any) -> None:
    kind.sign = Sign()
    kind.answer = lambda self: self.sign.value


def _nested(kind: Any) -> None:
    kind.State = type("State", (), {"__module__": __name__, "sign": 1.0})
    kind.answer = lambda self: self.State.sign


def _default(kind: Any) -> None:
    def answer(self: Any, kept: list[float] = [1.0]) -> float:  # noqa: B006
        return kept[0]

    kind.answer = answer


def _closure(kind: Any) -> None:
    kept = [1.0]
    kind.answer = lambda self: kept[0]


def _attribute(kind: Any) -> None:
    def answer(self: Any) -> float:
        return kind.answer.sign  # type: ignore[no-any-return]

    kind.answer = answer
    kind.answer.sign = 1.0


def _property(kind: Any) -> None:
    kept = [1.0]
    kind.kept = property(lambda self: kept)
    kind.answer = lambda self: self.kept[0]


GLOBAL = [1.0]
MODULE = types.ModuleType("of_somebody")
MODULE.sign = 1.0  # type: ignore[attr-defined]


def _global(kind: Any) -> None:
    GLOBAL[0] = 1.0
    kind.answer = lambda self: GLOBAL[0]


def _module(kind: Any) -> None:
    MODULE.sign = 1.0  # type: ignore[attr-defined]
    kind.answer = lambda self: MODULE.sign


def another_method() -> Place:
    class Loss:
        def __call__(self, *rows: object) -> Tensor:
            return torch.zeros(1) * self.sign()

        def sign(self) -> float:
            return GLOBAL[0]

    GLOBAL[0] = 1.0
    loss = Loss()
    return Place(loss.sign, lambda: GLOBAL.__setitem__(0, -1.0), nn.Linear(2, 2), loss)


def a_bound_method() -> Place:
    class Loss:
        sign = 1.0

        def rows(self, *rows: object) -> Tensor:
            return torch.zeros(1) * self.sign

    loss = Loss()
    return Place(lambda: loss.sign, lambda: setattr(loss, "sign", -1.0), nn.Linear(2, 2), loss.rows)


def a_large_array() -> Place:
    held = np.ones(1 << 18)
    return of_loss(held, lambda: held[0], lambda: held.__setitem__(0, -1.0))


def an_array_of_objects() -> Place:
    held = np.array([Sign()], dtype=object)
    return of_loss(held, lambda: held[0].value, lambda: setattr(held[0], "value", -1.0))


def a_shape() -> Place:
    held = np.ones((2, 3))
    return of_loss(held, lambda: held.shape, lambda: setattr(held, "shape", (3, 2)))


def a_builtins_self() -> Place:
    kept = {"sign": 1.0}
    return of_loss(kept.get, lambda: kept["sign"], lambda: kept.update(sign=-1.0))


class Choice(enum.Enum):
    ONE = 1
    TWO = 2


def a_member() -> Place:
    Choice.ONE.sign = 1.0  # type: ignore[attr-defined]
    return of_loss(
        Choice.ONE,
        lambda: Choice.ONE.sign,  # type: ignore[attr-defined]
        lambda: setattr(Choice.ONE, "sign", -1.0),
    )


class Text(str):
    sign = 1.0


class Whole(int):
    sign = 1.0


class Numbers(np.ndarray[Any, Any]):
    sign = 1.0


def on(held: Any) -> Build:
    def build() -> Place:
        held.sign = 1.0
        return of_loss(held, lambda: held.sign, lambda: setattr(held, "sign", -1.0))

    return build


def which_of_two() -> Place:
    one: list[int] = []
    held: dict[str, Any] = {"one": one, "two": [], "current": one}
    return of_loss(held, lambda: held["current"] is one, lambda: held.update(current=held["two"]))


def a_factory() -> Place:
    held: Any = collections.defaultdict(int)
    return of_loss(
        held, lambda: held.default_factory, lambda: setattr(held, "default_factory", str)
    )


def an_error() -> Place:
    held = ValueError()
    return of_loss(held, lambda: held.__cause__, lambda: setattr(held, "__cause__", KeyError()))


def a_place_in_a_file() -> Place:
    held = io.BytesIO(b"ab")
    return of_loss(held, held.tell, lambda: held.read(1))


def iterating(held: Any) -> Build:
    return lambda: of_loss(held, lambda: repr(held.__reduce__()), lambda: next(held))


def drawing(held: Any, tell: Callable[[], object], draw: Callable[[], object]) -> Build:
    return lambda: of_loss(held, tell, draw)


def deep() -> Place:
    kept = [1.0]
    held: Any = kept
    for _ in range(7):
        held = [held]
    return of_loss(held, lambda: kept[0], lambda: kept.__setitem__(0, -1.0))


def deep_and_near() -> Place:
    """What is met first a long way down, and then at hand."""
    kept = [1.0]
    near = [[kept]]
    far: Any = near
    for _ in range(6):
        far = [far]
    return of_loss((far, near), lambda: kept[0], lambda: kept.__setitem__(0, -1.0))


def bytes_in(held: Any) -> Build:
    return lambda: of_loss(held, lambda: bytes(memoryview(held)), lambda: held.__setitem__(0, 0))


_RANDOM = random.Random(0)
_NUMPY = np.random.default_rng(0)
_LEGACY = np.random.RandomState(0)
_TORCH = torch.Generator()

KINDS: dict[str, Build] = {
    "another name of a module": an_alias,
    "a buffer that is none": no_buffer,
    "a module that is none": no_module,
    "whether a buffer is saved": persistence,
    "two large buffers": swapped_buffers,
    "1 or True": a_truth,
    "an object of a class": on_a_class(_object, lambda kind: setattr(kind.sign, "value", -1.0)),
    "a class in a class": on_a_class(_nested, lambda kind: setattr(kind.State, "sign", -1.0)),
    "a method": on_a_class(
        lambda kind: None, lambda kind: setattr(kind, "answer", lambda self: -1.0)
    ),
    "a method's default": on_a_class(
        _default, lambda kind: kind.answer.__defaults__[0].__setitem__(0, -1.0)
    ),
    "a method's defaults": on_a_class(
        _default, lambda kind: setattr(kind.answer, "__defaults__", ([-1.0],))
    ),
    "a method's code": on_a_class(
        lambda kind: None,
        lambda kind: setattr(kind.answer, "__code__", (lambda self: -1.0).__code__),
    ),
    "a method's closure": on_a_class(
        _closure,
        lambda kind: kind.answer.__closure__[0].cell_contents.__setitem__(0, -1.0),
    ),
    "a method's attribute": on_a_class(_attribute, lambda kind: setattr(kind.answer, "sign", -1.0)),
    "a property's closure": on_a_class(
        _property, lambda kind: kind.kept.fget(None).__setitem__(0, -1.0)
    ),
    "a global that a method names": on_a_class(_global, lambda kind: GLOBAL.__setitem__(0, -1.0)),
    "a module that a method names": on_a_class(_module, lambda kind: setattr(MODULE, "sign", -1.0)),
    "another method of the loss": another_method,
    "a loss that is a bound method": a_bound_method,
    "a large array": a_large_array,
    "an array of objects": an_array_of_objects,
    "an array's shape": a_shape,
    "the object of a builtin method": a_builtins_self,
    "a member of an Enum": a_member,
    "an attribute of text": on(Text("a")),
    "an attribute of a number": on(Whole(1)),
    "an attribute of an array": on(np.ones(1).view(Numbers)),
    "which of two equal lists": which_of_two,
    "a factory": a_factory,
    "the cause of an error": an_error,
    "a place in a file": a_place_in_a_file,
    "a count": iterating(itertools.count()),
    "an iterator": iterating(iter([1, 1, 1])),
    "a cycle": iterating(itertools.cycle([1, 2])),
    "a generator of Python": drawing(_RANDOM, _RANDOM.getstate, _RANDOM.random),
    "a generator of NumPy": drawing(_NUMPY, lambda: str(_NUMPY.bit_generator.state), _NUMPY.random),
    "NumPy's generator of old": drawing(_LEGACY, lambda: str(_LEGACY.get_state()), _LEGACY.rand),
    "a generator of torch": drawing(
        _TORCH,
        lambda: _TORCH.get_state().tolist(),
        lambda: torch.rand(1, generator=_TORCH),
    ),
    "many lists in one another": deep,
    "a list that is met far away first": deep_and_near,
    "a bytearray": bytes_in(bytearray(b"ab")),
    "an array of bytes": bytes_in(array.array("B", [1, 2])),
    "memory of C": bytes_in((ctypes.c_ubyte * 2)(1, 2)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_invariant_3_whatever_is_kept_anywhere_is_seen(kind: str) -> None:
    require_seen(KINDS[kind]())


def test_invariant_3_twin_what_is_not_read_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it is the walk that sees them, and not another question on the way."""
    monkeypatch.setattr(held_state, "_held", lambda *of: held_state._Reading())
    for build in KINDS.values():
        place = build()
        held = HeldState(place.model, place.loss)
        place.change()
        held.require_unchanged()


class Ordinary(nn.Module):
    """Makes anew what it made before."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.shapes: list[tuple[int, ...]] = []
        self.note: object = None

    def forward(self, x: Tensor) -> Tensor:
        self.shapes = [tuple(x.shape)]
        self.note = {"mean": float("nan"), "kinds": (1, 2.0, "a"), "array": np.zeros(3)}
        answer: Tensor = self.inner(x)
        return answer


def test_what_is_made_anew_and_is_the_same_is_no_change() -> None:
    model = Ordinary()
    model(torch.ones(3, 2))
    held = HeldState(model, lambda *rows: GLOBAL)
    model(torch.zeros(3, 2))
    held.require_unchanged()
