"""Between the host and an accelerator, of which neither should wait for the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


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
