"""The functions that somebody hung into a model: they run in each pass, and no layer names them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import nn
from torch.nn.modules import module as torch_module

_KINDS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
"""Where modules keep them. Hooks of a state dict run in no pass."""

_LEFT_OUT = ("userdp.", "torch.distributed.")
"""The engines' own, which come and go within a pass, and those that gather a sharded model's
parameters, whose state is those parameters."""


class Hook(NamedTuple):
    """One function, and what runs it.

    Attributes:
        where: what it is registered with, in words.
        number: torch's own, which no other hook of the process ever has.
        function: what is called.
    """

    where: str
    number: int
    function: Any


def hooks_of(model: nn.Module) -> Iterator[Hook]:
    """All that a pass over ``model`` calls, in the order of its modules.

    Those of its modules, of its parameters (`Tensor.register_hook`), and of all modules there are.
    """
    for kind in _KINDS:
        yield from _hooks("all modules", vars(torch_module)[f"_global{kind}"])
    for name, module in model.named_modules():
        held = vars(module)
        for kind in _KINDS:
            if held.get(kind):
                yield from _hooks(f"module {name or type(module).__name__}", held[kind])
        for own, parameter in held["_parameters"].items():
            if parameter is not None:
                for found in (parameter._backward_hooks, parameter._post_accumulate_grad_hooks):
                    if found:
                        where = f"parameter {name}.{own}" if name else f"parameter {own}"
                        yield from _hooks(where, found)


def _hooks(where: str, held: Mapping[int, Any]) -> Iterator[Hook]:
    for number, function in held.items():
        if not (getattr(function, "__module__", None) or "").startswith(_LEFT_OUT):
            yield Hook(where, number, function)
