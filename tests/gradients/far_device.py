"""An accelerator that is not there: its tensors hold their numbers on the CPU, and do not mix.

What an engine does on a GPU differs from what it does on a CPU in which tensors lie where. Here an
operation that is given tensors of both devices fails as it would there; otherwise it runs on the
CPU's numbers, so that results can be compared. The device calls itself "ipu": a PyTorch without
CUDA lets nothing call itself that. Kernels, autocast and compiled code are not covered.

`far_machine` is a machine that has it: every command takes ``--device ipu`` there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from userdp.gradients.modes import unwatched
from userdp.training import devices

FAR = torch.device("ipu", 0)
"""Its name."""

_MAY_MIX = {"copy_", "_to_copy"}
_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}
_TAKES_HOST_INDICES = {"index", "index_put_", "index_put", "_unsafe_index"}


class MixedDevicesError(RuntimeError):
    """An operation got tensors of both devices."""


class Far(Tensor):
    """A tensor on the device that is not there."""

    near: Tensor
    place: ClassVar[torch.device] = FAR

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
        return Far.place

    def tolist(self) -> Any:
        return self.near.tolist()

    def untyped_storage(self) -> torch.UntypedStorage:
        """That of the numbers: which tensors share one is asked when a model is saved."""
        return self.near.untyped_storage()

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
    """Within, the device is there: tensors can be made on it and moved to it.

    Attributes:
        products: how many matrix products were computed there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.products = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        found = _run(func, args, kwargs or {})
        if found is NotImplemented:
            return found
        self.products += isinstance(found, Far) and func.overloadpacket.__name__ in _PRODUCTS
        return found


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = func.overloadpacket.__name__
    flat, spec = tree_flatten((args, kwargs))
    if any(isinstance(a, Tensor) and _is_made_of_others(type(a)) for a in flat):
        return NotImplemented  # it asks for what its parts do
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
    with unwatched():  # what is called here is no call of the model
        found = func(*inner[0], **inner[1])
    known = {id(a.near): a for a in far}

    def back(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if id(value) in known:
            return known[id(value)]
        return Far(value) if out_far else value

    return tree_map(back, found)


def _is_made_of_others(kind: type[Tensor]) -> bool:
    """Whether tensors of this kind wrap others, as those of which each process has a part do."""
    return not issubclass(kind, Far) and kind.__torch_dispatch__ is not Tensor.__torch_dispatch__


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


@contextmanager
def far_machine(index: int = 0) -> Iterator[Accelerator]:
    """Within, this machine has the device: ``--device ipu`` and ``auto`` mean it.

    Args:
        index: of this process's own device, where several run together.
    """

    def to(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        place = kwargs.get("device", args[0] if args else None)
        there = isinstance(place, (str, torch.device)) and torch.device(place).type == FAR.type
        return on_far(module) if there else honest(module, *args, **kwargs)

    def tensor(data: Any, *, device: Any = None, **kwargs: Any) -> Tensor:
        """PyTorch's own asks no mode when it moves what it was given."""
        made = make(data, **kwargs)
        if device is not None and torch.device(device).type == FAR.type:
            device = Far.place  # PyTorch itself would ask the device for its number
        return made if device is None else made.to(device)

    class Module(ModuleType):
        """What PyTorch looks for as ``torch.ipu``: streams that are those of the CPU."""

        def __getattr__(self, name: str) -> Any:
            return getattr(torch.cpu, name)

        def current_device(self) -> int:
            return index

    place = property(lambda tensor: tensor._local_tensor.device)  # of a tensor in parts
    honest, make = nn.Module.to, torch.tensor
    with (
        mock.patch.object(nn.Module, "to", to),
        mock.patch.object(devices, "_KIND", FAR.type),
        mock.patch.object(devices, "accelerators", return_value=index + 1),
        mock.patch.dict("os.environ", {"LOCAL_RANK": str(index)}),
        mock.patch.object(torch, "tensor", tensor),
        mock.patch.object(Far, "place", torch.device(FAR.type, index)),
        mock.patch.object(torch, FAR.type, Module(FAR.type), create=True),
        mock.patch.object(DTensor, "device", place, create=True),
        Accelerator() as machine,
    ):
        yield machine
