"""Parameters of which each process holds a part (FSDP2): their parts, and noise for them.

A model is sharded in one of two ways (`shard`). If all its parameters train, all are sharded, and
so are the clipped sum and its noise: `userdp.gradients.engines.sharded`. If some are frozen
(adapters on a base model), the frozen ones are sharded and the others whole on every process, and
per-unit gradients of adapters cost what they cost on one process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor, nn

from userdp.core.errors import UseError
from userdp.gradients.models import trainable_parameters
from userdp.gradients.noise import NoiseSource, require_priced

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether each process holds a part of ``tensor`` alone."""
    if not (dist.is_available() and dist.is_initialized()):
        return False
    from torch.distributed.tensor import DTensor

    return isinstance(tensor, DTensor)


def sharded_parts(model: nn.Module) -> list[FSDPModule]:
    """The modules of ``model`` that `shard` cut, itself among them; none where it never ran.

    True also while a pass has gathered them: its parameters then look as those of a whole model do.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return []
    from torch.distributed.fsdp import FSDPModule

    return [part for part in model.modules() if isinstance(part, FSDPModule)]


def local(tensor: Tensor) -> Tensor:
    """This process's part; the tensor itself where it is not sharded."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """All of it, on every process; a collective where it is sharded."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def like(parameter: Tensor, part: Tensor) -> Tensor:
    """``part``, a tensor of `local`'s shape, as a tensor sharded, and lying, as ``parameter`` is.

    PyTorch would move one from elsewhere to the process's current device, which may be another's.
    """
    if not is_sharded(parameter):
        return part
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part.to(parameter.device),
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def part_of(parameter: Tensor, tensor: Tensor) -> Tensor:
    """The view of a whole tensor that is this process's part of it, if sharded as ``parameter``.

    ``tensor`` itself where the parameter is not sharded.
    """
    if not is_sharded(parameter):
        return tensor
    mesh = parameter.device_mesh
    parts = tensor.chunk(mesh.size())  # fewer than processes where there are few rows
    rank = mesh.get_local_rank()
    return parts[rank] if rank < len(parts) else tensor[:0]


def shard(model: nn.Module) -> nn.Module:
    """Shard ``model`` over all joined processes, in place; gradients are then sums, not means.

    Each element of a list of layers is gathered when it is its turn and let go of afterwards.
    Build the optimizer after this. If some parameters are frozen, the trainable ones stay whole.

    Args:
        model: on every process the same, on the process's own device.

    Raises:
        UseError: `torch.distributed` has not joined any processes.
    """
    if not dist.is_initialized():
        raise UseError(
            "sharding is over the processes of one run, and none have joined",
            hint="start with torchrun",
        )
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    device = next(model.parameters()).device
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    frozen = any(not p.requires_grad for p in model.parameters())
    whole_ones = {p for p in model.parameters() if p.requires_grad} if frozen else set()
    layers = [
        layer
        for module in model.modules()
        if isinstance(module, nn.ModuleList)
        for layer in module
        if any(True for _ in layer.parameters())
    ]
    for module in [*layers, model]:
        fully_shard(module, mesh=mesh, ignored_params=whole_ones)
    for part in sharded_parts(model):
        # FSDP divides by the number of processes otherwise.
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
    return model


def reshard(model: nn.Module) -> None:
    """Let go of what a forward pass gathered."""
    for part in sharded_parts(model):
        part.reshard()


@contextmanager
def let_go(model: nn.Module) -> Iterator[None]:
    """Nothing is gathered when the block begins, nor after it, however it ends.

    A forward pass without a backward one leaves layers gathered, and so does a pass that is refused
    half-way. They would go on computing with those weights, whatever is written to the parts.
    """
    reshard(model)
    try:
        yield
    finally:
        reshard(model)


class ShardNoise(NoiseSource):
    """Noise for a sharded sum: each process draws that of its own part.

    Guarantee: as `NoiseSource`'s, for the whole of the sum: every coordinate lies on one process,
    and every process's generators are seeded by its own operating system.

    Args:
        model: whose trainable parameters are sharded.
        unsafe_noise_seed: FOR TESTS ONLY: the noise of one process with this seed, cut to parts.
    """

    def __init__(self, model: nn.Module, *, unsafe_noise_seed: int | None = None) -> None:
        super().__init__(unsafe_noise_seed=unsafe_noise_seed)
        self._parameters = trainable_parameters(model)
        # The parts of all processes together are what one step releases.
        require_priced(sum(parameter.numel() for parameter in self._parameters.values()))

    def add_(self, value: dict[str, Tensor], noise_std: float) -> None:
        """Add N(0, ``noise_std``²) to every coordinate of this process's parts, in place."""
        if not self.unsafe:
            super().add_(value, noise_std)
            return
        shapes = {name: self._parameters[name].shape for name in value}
        spread = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
        parts = {name: part_of(self._parameters[name], spread[name]) for name in value}
        for name, part in parts.items():
            part.copy_(value[name])
        super().add_(spread, noise_std)
        for name, part in parts.items():
            value[name].copy_(part)
