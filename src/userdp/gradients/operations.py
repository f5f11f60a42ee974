"""Operations that somebody gave to torch, and which a model calls by their names alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType
from typing import Any

from torch._library import custom_ops

from userdp.gradients.parts import is_library


def own_operations() -> Iterator[tuple[str, Callable[..., object]]]:
    """The functions of operations that torch's `custom_op` made, but those of libraries.

    A kernel that somebody registered with torch's `Library` lies beyond Python, and is not among
    them.
    """
    known: Mapping[str, Any] = custom_ops.OPDEFS
    for name, operation in list(known.items()):
        made = operation._init_fn
        if isinstance(made, FunctionType) and is_library(made):
            continue
        functions = [made, operation._setup_context_fn, operation._backward_fn]
        functions += map(inspect.unwrap, operation._backend_fns.values())
        yield from ((name, function) for function in functions if function is not None)
