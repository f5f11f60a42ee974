"""An accelerator that is not there: its tensors hold their numbers on the CPU, and do not mix.

What an engine does on a GPU differs from what it does on a CPU in which tensors lie where. Here an
operation that is given tensors of both devices fails as it would there; otherwise it runs on the
CPU's numbers, so that results can be compared. The device calls itself "xla": a PyTorch without
CUDA lets nothing call itself that. Kernels, autocast and compiled code are not covered.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

FAR = torch.device("xla", 0)
"""Its name."""

_MAY_MIX = {"copy_", "_to_copy"}
_TAKES_HOST_INDICES = {"index", "index_put_", "index_put", "_unsafe_index"}


class MixedDevicesError(RuntimeError):
    """An operation got tensors of both devices."""


class Far(Tensor):
    """A tensor on the device that is not there."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor) -> Far:
        return torch.Tensor._make_wrapper_subclass(
            cls,
            near.size(),
            strides=near.stride(),
            storage_offset=near.storage_offset(),
            dtype=near.dtype,
            device="meta",
            requires_grad=near.requires_grad,
        )

    def __init__(self, near: Tensor) -> None:
        self.near = near

    __torch_function__ = torch._C._disabled_torch_function_impl

    @property
    def device(self) -> torch.device:
        return FAR

    def tolist(self) -> Any:
        return self.near.tolist()

    def __getitem__(self, index: Any) -> Tensor:
        if isinstance(index, list):  # torch would make it a tensor of no device
            index = torch.tensor(index)
        return super().__getitem__(index)

    def __repr__(self) -> str:
        return f"Far({self.near})"

    @classmethod
    def __torch_dispatch__(
        cls,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return _run(func, args, kwargs or {})


class Accelerator(TorchDispatchMode):
    """Within, the device is there: tensors can be made on it and moved to it."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = func.overloadpacket.__name__
    flat, spec = tree_flatten((args, kwargs))
    far = [a for a in flat if isinstance(a, Far)]
    near = [a for a in flat if isinstance(a, Tensor) and not isinstance(a, Far)]
    if far and name in _TAKES_HOST_INDICES:
        if not isinstance(args[0], Far):
            raise MixedDevicesError(f"{name}: a host tensor indexed by one of the device")
    elif far and name not in _MAY_MIX:
        wrong = [t for t in near if t.dim() > 0]
        if wrong or (near and all(t.dim() == 0 for t in far)):
            raise MixedDevicesError(f"{name}: {[tuple(t.shape) for t in wrong]} is on the host")
    wanted = kwargs.get("device")
    out_far = bool(far) if wanted is None else torch.device(wanted).type != "cpu"
    if name == "copy_":
        out_far = isinstance(args[0], Far)
    inner = tree_unflatten([a.near if isinstance(a, Far) else a for a in flat], spec)
    if wanted is not None:
        inner[1]["device"] = torch.device("cpu")
    found = func(*inner[0], **inner[1])
    known = {id(a.near): a for a in far}

    def back(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) in known:
            return known[id(value)]
        return Far(value) if out_far else value

    return tree_map(back, found)


def on_far(model: nn.Module) -> nn.Module:
    """``model``, moved: its parameters (ties stay ties) and buffers lie on the device then."""
    moved: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                near = parameter.detach()
                fresh = nn.Parameter(Far(near), requires_grad=parameter.requires_grad)
                module._parameters[name] = moved.setdefault(id(parameter), fresh)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = Far(buffer)
    return model
