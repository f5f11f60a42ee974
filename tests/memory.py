"""Memory that runs out where a test wants it to."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from userdp.gradients import causal_lm_loss

ERRORS: dict[str, Callable[[], BaseException]] = {
    "device": lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 12.34 GiB"),
    "host": lambda: RuntimeError("DefaultCPUAllocator: can't allocate memory: 1234 bytes"),
    "python": MemoryError,
}


@dataclass
class Memory:
    """Runs out in the pass number ``at`` (from 0), and in every one of more than ``most`` rows."""

    at: int | None = None
    most: int = 1 << 30
    error: Callable[[], BaseException] = ERRORS["device"]
    rows: list[int] = field(default_factory=list)


class MemoryLoss:
    """A loss whose passes want memory, of which it holds nothing that an engine would refuse."""

    def __init__(self, memory: Memory) -> None:
        self._memory = weakref.ref(memory)

    def __call__(
        self, model: nn.Module, input_ids: Tensor, lengths: Tensor, targets: Tensor | None = None
    ) -> Tensor:
        losses = causal_lm_loss(model, input_ids, lengths, targets)
        memory = self._memory()
        assert memory is not None
        memory.rows.append(len(lengths))
        if len(memory.rows) - 1 == memory.at or len(lengths) > memory.most:
            raise memory.error()
        return losses
