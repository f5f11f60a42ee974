"""How a pass is run: as it is written, under the eyes of modes of ours, and on its device.

Neither the host nor an accelerator should wait for the other (`moved`, `told`).
"""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import _engine_run_backward

unwatched = torch._C.DisableTorchFunction
"""Within it no function mode is told: what is asked there, the model did not ask."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Of mallopt(3): free bytes at the heap's end, -1 for no limit, and bytes of a block of its own."""


def eagerly() -> AbstractContextManager[None]:
    """Within, what was compiled by `torch.compile` runs as it is written."""
    if "torch._dynamo" not in sys.modules:  # nothing was compiled; importing it takes seconds
        return nullcontext()
    stance: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance


_OFF: tuple[tuple[Any, str], ...] = (
    (torch.backends.cudnn, "benchmark"),  # picks kernels by how fast they were
    (torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction"),
    (torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"),
    (torch.utils.deterministic, "fill_uninitialized_memory"),  # costs time, and changes nothing
)
"""What `deterministic` switches off."""


@contextmanager
def deterministic(device: torch.device) -> Iterator[None]:
    """Within, kernels of an accelerator add in one order: a unit's bits are its own then.

    Where there is no such kernel torch warns; `engines.certify` measures what comes of it.
    """
    if device.type == "cpu":
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    warned = torch.is_deterministic_algorithms_warn_only_enabled()
    held = [getattr(*switch) for switch in _OFF]
    torch.use_deterministic_algorithms(True, warn_only=True)
    for switch in _OFF:
        setattr(*switch, False)
    try:
        yield
    finally:
        for switch, value in zip(_OFF, held, strict=True):
            setattr(*switch, value)
        torch.use_deterministic_algorithms(before, warn_only=warned)


def run_backward(
    total: Tensor,
    inputs: Iterable[Tensor],
    *,
    accumulate: bool = False,
    keep_graph: bool = False,
) -> tuple[Tensor | None, ...]:
    """The gradients of ``total``, or with ``accumulate`` none: they go to ``.grad``.

    torch.autograd.grad and Tensor.backward would switch modes off while they run, and with these
    the watching of checkpointed layers that are computed again; this is what they call.
    """
    ones = torch.ones_like(total)
    return _engine_run_backward(
        (total,), (ones,), keep_graph, False, tuple(inputs), True, accumulate_grad=accumulate
    )


def run_batched_backward(
    outputs: Sequence[Tensor], gradients: Sequence[Tensor], inputs: Iterable[Tensor]
) -> tuple[Tensor | None, ...]:
    """For each index of the gradients' first dimension, the gradients that arrive at ``inputs``.

    Keeps the graph. As `run_backward`: what torch.autograd.grad calls for ``is_grads_batched``.
    """
    level = torch._C._vmapmode_increment_nesting()
    try:
        with unwatched():  # the model did not ask
            batched = tuple(torch._add_batch_dim(gradient, 0, level) for gradient in gradients)
        found = _engine_run_backward(
            tuple(outputs), batched, True, False, tuple(inputs), True, accumulate_grad=False
        )
        count = len(gradients[0])
        with unwatched():
            return tuple(
                None if part is None else torch._remove_batch_dim(part, level, count, 0)
                for part in found
            )
    finally:
        torch._C._vmapmode_decrement_nesting()


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on ``device``, for which the host does not wait: by pinned memory."""
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def told(tensor: Tensor) -> Callable[[], Tensor]:
    """What brings ``tensor`` to the host: it waits until the device has come to where it is now.

    Not for what is asked of the device after this call.
    """
    if tensor.device.type != "cuda":
        return tensor.cpu
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    host.copy_(tensor, non_blocking=True)
    stream: Any = torch.cuda.current_stream(tensor.device)  # torch gives it no types
    arrived = stream.record_event()

    def wait() -> Tensor:
        arrived.synchronize()
        return host

    return wait


@cache
def keep_freed_memory() -> None:
    """Have glibc keep what a pass frees, for the next pass: the process's memory stays at its most.

    By itself it gives back what is free at the end of its heap, and each block above 32 MiB. The
    next pass then waits for fresh pages, 10% of a step (GPT-2 of 354 M weights; 8% in bfloat16 at
    4 layers of 256). Plain training is mostly spared that by its gradients, which stay where the
    first backward pass puts them, above its activations. At that size the peak grew by 1%.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:  # the older glibc takes no more than 32 MiB
        if not mallopt(_MMAP_THRESHOLD, 1 << 30):
            mallopt(_MMAP_THRESHOLD, 32 << 20)
        mallopt(_TRIM_THRESHOLD, -1)


def let_go_of_memory() -> None:
    """Give back what an attempt that failed left: cycles of objects, and what devices keep.

    Call it when the error is gone: its trace holds the frames of the attempt, and these hold the
    tensors.
    """
    gc.collect()
    torch.cuda.empty_cache()  # does nothing where no such device is in use
