"""The fingerprint of a pass: the calls of torch's functions that it made, in their order.

A certificate holds for a sequence of calls at one shape of passes. A later pass that makes the same
calls keeps its rows apart as the certified one did: the rules of `places` hang on functions, shapes
and plain arguments, never on contents. *Compared:* functions, shapes and types of tensors, which of
them is which trainable parameter, and plain arguments but for whole numbers, which count calls and
the like and may differ. What only asks for a shape or a type is not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from userdp.gradients.certificate.places.place import Place

_PLAIN = frozenset([float, bool, str, complex, type(None), torch.dtype, torch.device])
_SEVERAL = (tuple, list)


class Seen(NamedTuple):
    """One call.

    Attributes:
        function: of torch.
        given: what it was given (`told`).
        ruled: whether a rule answered in its place.
        spread: whether trained tensors among its arguments were spread over rows.
        made: whether it made something of parameters and constants alone that has a name now.
    """

    function: Callable[..., Any]
    given: tuple[object, ...]
    ruled: bool = False
    spread: bool = False
    made: bool = False


@dataclass(slots=True)
class Calls:
    """What a pass did.

    Attributes:
        seen: its calls.
        asked: what rules asked of places, in order: the shape of the tensor and its place.
        drew: whether coins were thrown.
    """

    seen: list[Seen] = field(default_factory=list)
    asked: list[tuple[torch.Size, Place | None]] = field(default_factory=list)
    drew: bool = False


def told(
    names: Mapping[int, str], args: Iterable[object], kwargs: Mapping[str, object]
) -> tuple[object, ...]:
    """What a call was given, as far as it is compared.

    Args:
        names: of trainable parameters, by their ids.
        args: of the call.
        kwargs: of the call.
    """
    given = [_told(names, value) for value in args]
    if kwargs:
        given += [(key, _told(names, value)) for key, value in kwargs.items()]
    return tuple(given)


def _told(names: Mapping[int, str], value: object) -> object:
    if isinstance(value, Tensor):
        return value.shape, value.dtype, names.get(id(value))
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind in _SEVERAL:
        return tuple([_told(names, part) for part in value])  # type: ignore[attr-defined]
    return kind
