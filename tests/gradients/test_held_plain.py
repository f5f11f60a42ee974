"""Containers of numbers and words, which are noted with all that they hold: any change is seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from tests.gradients.held_places import Build, Place, of_model, require_seen


def plainly(before: Any, after: Any) -> Build:
    """A model that holds ``before``, in which nothing but numbers and words stands, then ``after``.

    In the same list: what is held is one and the same.
    """

    def build() -> Place:
        model, held = nn.Module(), [before]
        model.options = {"kept": held}
        return of_model(model, lambda: repr(held), lambda: held.__setitem__(0, after))

    return build


def in_place(held: Any, change: Callable[[Any], object]) -> Build:
    """A model that holds a plain container, which ``change`` alters as it stands."""

    def build() -> Place:
        model, own = nn.Module(), type(held)(held)
        model.options = own
        return of_model(model, lambda: repr(own), lambda: change(own))

    return build


def an_equal_other_list() -> Place:
    model, one, two = nn.Module(), [1], [1]
    model.lists, model.current = [one, two], one
    return of_model(
        model,
        lambda: model.current is one,
        lambda: setattr(model, "current", two),
    )


KINDS: dict[str, Build] = {
    "a number in a list": plainly(1, 2),
    "True for 1 in a list": plainly(1, True),
    "1.0 for 1 in a list": plainly(1, 1.0),
    "-0.0 for 0.0 in a list": plainly(0.0, -0.0),
    "a number for none": plainly(float("nan"), 0.0),
    "a word for a number": plainly(1, "1"),
    "a tuple for a list": plainly((1, 2), [1, 2]),
    "a key for a value": plainly({"a": "b", "c": "d"}, {"a": "c", "b": "d"}),
    "an entry of a dictionary": in_place({"a": 1.0}, lambda held: held.update(a=-1.0)),
    "a key of a dictionary": in_place({"a": 1}, lambda held: held.update(b=held.pop("a"))),
    "the order of a dictionary": in_place(
        {"a": 1, "b": 1}, lambda held: held.update(a=held.pop("a"))
    ),
    "one more in a long list": in_place(list(range(70)), lambda held: held.append(1)),
    "a list that becomes long": in_place(list(range(64)), lambda held: held.append(1)),
    "another one of two equal lists": an_equal_other_list,
}


@pytest.mark.parametrize("kind", KINDS)
def test_invariant_3_whatever_changes_in_a_plain_container_is_seen(kind: str) -> None:
    require_seen(KINDS[kind]())
