"""Where a run computes. The claim does not depend on it, so a run may go on on another device."""

from __future__ import annotations

import torch

from userdp.errors import UseError


def require_device(name: str, *, processes: int = 1) -> torch.device:
    """The device of this name, if this machine has it.

    Args:
        name: "cpu", "cuda" or "cuda:N".
        processes: of the run; several compute on CPUs alone.

    Raises:
        UseError: it is none of these, is not there, or several processes ask for CUDA.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UseError(f"there is no device {name!r}", hint="cpu, cuda or cuda:N") from error
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise UseError(
            f"training computes on cpu or cuda, got {name!r}: no engine was tried elsewhere"
        )
    if processes > 1:
        raise UseError(
            "several processes compute on CPUs alone: their sums have not been tried on CUDA",
            hint="leave --device out under torchrun, or train in one process",
        )
    if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
        raise UseError(
            f"there is no device {name!r} here: this PyTorch ({torch.__version__}) sees "
            f"{torch.cuda.device_count()} CUDA devices",
            hint="leave --device out to train on the CPU, or install PyTorch for CUDA",
        )
    return device
