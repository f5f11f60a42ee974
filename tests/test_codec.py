"""Dataclasses to plain values and back: nothing is lost, and nothing unknown comes in."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import ClassVar

import pytest

from userdp.core.codec import canonical, decode, digest, encode
from userdp.core.errors import UseError


class Colour(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Shape:
    kind: ClassVar[str]

    size: float


@dataclass(frozen=True)
class Circle(Shape):
    kind: ClassVar[str] = "circle"


@dataclass(frozen=True)
class Square(Shape):
    kind: ClassVar[str] = "square"

    turned: bool = False


@dataclass(frozen=True)
class Plain:
    """Of no family: a subclass elsewhere must not stand in for it. Its kind is a field."""

    number: int = 3
    kind: str = "x"


@dataclass(frozen=True)
class Other(Plain):
    pass


@dataclass(frozen=True)
class Whole:
    schema: ClassVar[str] = "test/1"

    shape: Shape
    plain: Plain
    colour: Colour | None = None
    names: tuple[str, ...] = ()
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    size: float | None = None
    either: Circle | Plain | None = None


WHOLE = Whole(
    shape=Square(2.0, turned=True),
    plain=Plain(4),
    colour=Colour.RED,
    names=("a", "b"),
    shapes={"y": Circle(1.5), "x": Square(1.0)},
    size=0.1,
    either=Circle(0.5),
)


def test_what_is_written_is_read_again():
    assert decode(Whole, json.loads(canonical(WHOLE)), what="it") == WHOLE
    assert type(decode(Whole, encode(WHOLE), what="it").plain) is Plain
    empty = Whole(shape=Circle(1.0), plain=Plain())
    assert decode(Whole, encode(empty), what="it") == empty


def test_equal_values_have_equal_digests_and_others_have_others():
    assert replace(WHOLE, size=2) == replace(WHOLE, size=2.0)
    assert digest(replace(WHOLE, size=2)) == digest(replace(WHOLE, size=2.0))
    assert digest(replace(WHOLE, shapes=dict(reversed(WHOLE.shapes.items())))) == digest(WHOLE)
    others = ({"size": None}, {"shape": Circle(2.0)}, {"names": ("b", "a")}, {"plain": Plain(5)})
    assert len({digest(replace(WHOLE, **one)) for one in ({}, *others)}) == 5


@pytest.mark.parametrize(
    ("place", "value", "named"),
    [
        ("schema", "test/2", "schema"),
        ("size", "1.0", "it.size"),
        ("size", True, "it.size"),
        ("size", math.nan, "it.size"),
        ("size", math.inf, "it.size"),
        ("size", 10**400, "it.size"),
        ("colour", "blue", "it.colour"),
        ("names", "ab", "it.names"),
        ("names", ["a", 3], r"it.names\[1\]"),
        ("shape", {"kind": "circle"}, "it.shape.*missing .'size'"),
        ("shape", {"kind": "circle", "size": 1.0, "more": 1}, "it.shape.*unknown .'more'"),
        ("shape", {"kind": "oval", "size": 1.0}, "it.shape is of kind 'oval'"),
        ("shape", {"size": 1.0}, "it.shape is of kind None"),
        ("shape", None, "it.shape"),
        ("shapes", {"x": 3}, "it.shapes.x"),
        ("plain", {"number": 4.0, "kind": "x"}, "it.plain.number"),
        ("plain", {"number": True, "kind": "x"}, "it.plain.number"),
        ("plain", {"number": 4}, "it.plain.*missing .'kind'"),
    ],
)
def test_what_is_unknown_missing_or_of_another_type_is_refused_by_name(place, value, named):
    with pytest.raises(UseError, match=named):
        decode(Whole, {**encode(WHOLE), place: value}, what="it")


@pytest.mark.parametrize("values", [None, [], "x", 3, {}])
def test_what_is_no_object_of_it_is_refused(values):
    with pytest.raises(UseError):
        decode(Whole, values, what="it")


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_json_cannot_hold_is_not_written(bad):
    with pytest.raises(UseError):
        encode(replace(WHOLE, size=bad))


def test_what_is_decoded_is_of_the_class_that_everybody_knows():
    """A dataclass with slots is made twice; the first stays a subclass until it is collected."""

    @dataclass(frozen=True)
    class Kind:
        kind: ClassVar[str]

    gc.disable()
    try:

        @dataclass(frozen=True, slots=True)
        class One(Kind):
            kind: ClassVar[str] = "one"
            number: int

        assert len(Kind.__subclasses__()) == 2
        assert decode(Kind, encode(One(number=3)), what="it") == One(number=3)
    finally:
        gc.enable()
