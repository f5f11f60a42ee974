"""Whether calling a module is what its library wrote, and nothing that somebody put around it.

A rule that computes for a module what its library would must not pass over a hook, a forward that
was put into the object, or one that was put into the class for all of its objects.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_modules

_hooked_everywhere: Callable[[], bool] = torch_modules._has_any_global_hook  # torch: no types


def as_written(module: nn.Module) -> bool:
    """Whether ``module`` has its class's own forward, and nobody's hooks around it."""
    return (
        class_as_written(type(module))
        and "forward" not in module.__dict__
        and not (
            module._forward_hooks
            or module._forward_pre_hooks
            or module._backward_hooks
            or module._backward_pre_hooks
            or _hooked_everywhere()
        )
    )


def class_as_written(kind: type[nn.Module]) -> bool:
    """Whether the forward of ``kind``, and what calls it, are those of their source files."""
    return (
        kind.__call__ is nn.Module.__call__
        and _source_of(nn.Module.__call__) == torch_modules.__file__
        and _source_of(kind.forward) == getattr(sys.modules.get(kind.__module__), "__file__", None)
    )


def _source_of(function: Any) -> str | None:
    """The file of a function written in Python; of a wrapper, the wrapper's."""
    code = getattr(function, "__code__", None)
    return None if code is None else str(code.co_filename)
