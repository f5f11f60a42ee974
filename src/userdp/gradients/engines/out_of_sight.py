"""What a function mode of ours is not told: code that runs below torch's functions, and around it.

While torch runs a function, its modes are off. So Python code that a function calls in turn may
read somebody's tokens unseen, and hand a number to the model: a callable among the arguments, an
object that turns itself into a number, a class of tensors, an operation or a mode of somebody's
own. `runs_code` and `other_modes` tell where any of these take part.

Other calls never reach a mode (`noting_calls`). Code under `torch.jit` runs below Python: a number
that it returns was read from somebody's tokens, and its writes need not be counted. Tensors may
swap their insides; and whoever switches torch's functions off is not followed at all. For as long
as a pass is watched, these are replaced by themselves with a note, in their types, where torch
looks them up at each call.

*What is not seen:* modes that are taken off by other private means of torch, and kernels that
somebody wrote in Python and registered for torch's own operations.
"""

from __future__ import annotations

import functools
import threading
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch._ops import OpOverload, OpOverloadPacket
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

_LIBRARIES: Final = ("torch", "userdp", "numpy", "bitsandbytes")
"""Whose classes of values, of tensors and of modes look at nobody's numbers but for the answer."""

_OPERATIONS: Final = ("aten", "prims")
"""torch's own, written in C++."""

_METHODS: Final = (types.MethodDescriptorType, types.WrapperDescriptorType)
_ATTRIBUTES: Final = (types.GetSetDescriptorType, property)

_MODES: Final = ("userdp.", "torch.utils._device.")
"""Those of torch hand shapes and numbers on to whoever asks, or to code of somebody's own."""

_FREQUENT: Final = frozenset([Tensor, nn.Parameter, bool, int, float, str, type(None), torch.dtype])
_PLAIN: Final = (complex, type(...), range, bytes, bytearray, type)
_SEVERAL: Final = (tuple, list, set, frozenset, torch.Size)

_CALLS: Final = (
    *[
        (getattr(torch._C, kind), "__call__")
        for kind in ("ScriptFunction", "ScriptMethod", "ScriptClass", "ScriptClassFunction")
    ],
    (torch._C, "_swap_tensor_impl"),
    # A backward pass in the middle of a model, and what is told of calls by their shapes.
    (torch.autograd, "_engine_run_backward"),
    (torch.autograd.graph, "_engine_run_backward"),
    (torch.autograd.profiler, "_enable_profiler"),
    (torch._C, "DisableTorchFunction"),
)
"""Where each is found, and by what name."""


def runs_code(
    function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any]
) -> bool:
    """Whether a call may run Python code that is not torch's.

    >>> runs_code(torch.add, (torch.ones(2), 1), {})
    False
    >>> runs_code(Tensor.apply_, (torch.ones(2), print), {})
    True
    """
    for value in args:
        if type(value) not in _FREQUENT:  # hardly ever: each call is asked
            if _are_strange(args):
                return True
            break
    return (bool(kwargs) and _are_strange(kwargs.values())) or not _is_torchs(function)


def _are_strange(values: Collection[Any]) -> bool:
    for value in values:
        kind: type = type(value)
        if kind in _FREQUENT:
            continue
        if kind in _SEVERAL:
            if _are_strange(value):
                return True
        elif kind is dict:
            if _are_strange(value.values()):
                return True
        elif kind is slice:
            if _are_strange((value.start, value.stop, value.step)):
                return True
        elif (
            (isinstance(value, tuple | list) and _are_strange(tuple(value)))
            or _is_strange(kind)
            or (callable(value) and not isinstance(value, type))
        ):
            return True
    return False


@functools.lru_cache(maxsize=1 << 12)
def _is_strange(kind: type) -> bool:
    """Told of types, of which there are few; bounded, since a model may make new ones."""
    return kind not in _PLAIN and not _of(kind, _LIBRARIES)


@functools.lru_cache(maxsize=1 << 12)
def _is_torchs(function: Callable[..., Any]) -> bool:
    if isinstance(function, OpOverload):
        return function.namespace in _OPERATIONS
    if isinstance(function, OpOverloadPacket):
        return function._qualified_op_name.partition("::")[0] in _OPERATIONS
    if isinstance(function, torch._ops.HigherOrderOperator):  # it is handed code
        return False
    if getattr(function, "__module__", None) is not None:
        return _of(function, ("torch", "userdp"))
    # Written in C: a method of tensors, or the reading and setting of one of their attributes.
    return isinstance(function, _METHODS) or isinstance(
        getattr(function, "__self__", None), _ATTRIBUTES
    )


def _of(made: Any, libraries: tuple[str, ...]) -> bool:
    return str(made.__module__).partition(".")[0] in libraries


def other_modes() -> bool:
    """Whether a mode of somebody's own is on, which is told of all numbers.

    Function modes that are on already when a pass begins lie below ours; those that the model puts
    on lie above, where what they ask is seen.
    """
    stack: Any = _get_current_function_mode_stack  # torch gives it no types
    modes = (*stack(), *_get_current_dispatch_mode_stack())
    return any(not f"{type(mode).__module__}.".startswith(_MODES) for mode in modes)


_noting: Final[list[Callable[[], None]]] = []
_lock: Final = threading.RLock()
_own: Final[list[Any]] = []


@contextmanager
def noting_calls(note: Callable[[], None]) -> Iterator[None]:
    """Within, ``note`` is called before each call that no mode sees, by whatever thread.

    Several may watch at a time; the last to leave puts everything back.
    """
    with _lock:
        if not _noting:
            _own[:] = [getattr(where, name) for where, name in _CALLS]
            for (where, name), own in zip(_CALLS, _own, strict=True):
                setattr(where, name, _noted(own))
        _noting.append(note)
    try:
        yield
    finally:
        with _lock:
            _noting.remove(note)
            if not _noting:
                for (where, name), own in zip(_CALLS, _own, strict=True):
                    setattr(where, name, own)


def _noted(own: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        for note in tuple(_noting):
            note()
        return own(*args, **kwargs)

    return call
