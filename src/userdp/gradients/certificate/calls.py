"""The fingerprint of a pass: the calls of torch's functions that it made, in their order.

A certificate holds for a sequence of calls at one shape of passes. A later pass that makes the same
calls keeps its rows apart as the certified one did: the rules of `operations` hang on functions,
shapes and plain arguments, never on contents. *Compared:* functions, shapes and types of tensors,
which of them is which trainable parameter, and plain arguments. Whole numbers that are indices or
summands may differ (`COUNTED`). What only asks for a shape or a type is not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from userdp.gradients.certificate.places import Place

_PLAIN = frozenset([bool, int, float, str, complex, type(None), torch.dtype, torch.device])


def named(names: str) -> list[Callable[..., Any]]:
    """All functions and methods of these names, wherever torch keeps them."""
    homes = (torch, torch.Tensor, torch.nn.functional)
    known = [getattr(home, name, None) for name in names.split() for home in homes]
    return [function for function in known if callable(function)]


def _getters(names: str) -> list[Callable[..., Any]]:
    """What stands for reading tensors' properties."""
    return [getattr(torch.Tensor, name).__get__ for name in names.split()]


_profiler = torch.ops.profiler
ASKS: frozenset[Any] = frozenset(
    [
        *named(
            "size numel nelement __len__ stride storage_offset is_contiguous dim ndimension "
            "is_floating_point is_complex is_signed is_inference is_conj is_neg element_size "
            "get_device __hash__"
        ),
        *_getters(
            "shape nbytes dtype device layout ndim is_leaf requires_grad is_cuda is_cpu is_sparse "
            "is_quantized is_meta is_nested is_mps is_xpu is_mkldnn itemsize _version"
        ),
        torch.device,  # libraries name a device once and keep it
        # What `torch.profiler.record_function` calls, as sharding does in backward passes.
        _profiler._record_function_enter_new,
        _profiler._record_function_exit,
        _profiler._record_function_exit._RecordFunction,
    ]
)
"""What is asked without a look at numbers. Shapes are public where rows are followed: one that
hangs on data ends the proof where it is made."""

_data: Any = torch.Tensor.data
HANDS_OUT: frozenset[Any] = frozenset(
    [*named("data_ptr set_ share_memory_ tensor_split"), _data.__get__, _data.__set__]
)
"""What hands out a tensor's memory, puts another in its place, or (`tensor_split`) reads it, where
torch's dispatcher sees nothing of it."""


_NUMBERS = "add sub mul div truediv floordiv mod pow eq ne lt le gt ge"
COUNTED = frozenset(
    [
        *named("__getitem__ __setitem__ full full_like tensor as_tensor fill_ clamp masked_fill"),
        *named(" ".join(f"{n} {n}_ __{n}__ __r{n}__ __i{n}__" for n in _NUMBERS.split())),
    ]
)
"""Functions whose whole numbers are numbers, or indices into what a row has. They may count calls,
and no place hangs on them: all that such an index can move is seen in the shape of the result."""


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
    names: Mapping[int, str],
    function: Callable[..., Any],
    args: Iterable[object],
    kwargs: Mapping[str, object],
) -> tuple[object, ...]:
    """What a call was given, as far as it is compared.

    Args:
        names: of trainable parameters, by their ids.
        function: that is called.
        args: of the call.
        kwargs: of the call.
    """
    counted = function in COUNTED
    given = [_told(names, value, counted) for value in args]
    if kwargs:
        given += [(key, _told(names, value, counted)) for key, value in kwargs.items()]
    return tuple(given)


def _told(names: Mapping[int, str], value: object, counted: bool) -> object:
    if isinstance(value, Tensor):
        return value.shape, value.dtype, names.get(id(value))
    kind = type(value)
    if kind in _PLAIN:
        return int if counted and kind is int else value
    if isinstance(value, tuple | list):
        return tuple([_told(names, part, counted) for part in value])
    return value if isinstance(value, int | float) else kind  # such as NumPy's
