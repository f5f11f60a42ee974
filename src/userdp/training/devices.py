"""Where a run computes. The claim does not depend on it: a run may continue on another device."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any, Final

import torch

from userdp.errors import UseError

AUTO: Final = "auto"
NAMES: Final = "auto, cpu, cuda or cuda:N"


def choose_device(name: str = AUTO, *, processes: int = 1) -> torch.device:
    """The device of this name, if this machine has it.

    Args:
        name: "cpu", "cuda", "cuda:N", or "auto": the first CUDA device that this PyTorch sees, else
            the CPU, and always the CPU for several processes.
        processes: of the run; several compute only on CPUs.

    Raises:
        UseError: it is none of these, this machine has none, or several processes ask for CUDA.
    """
    if name == AUTO:
        return torch.device("cuda" if processes == 1 and torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UseError(f"there is no device {name!r}", hint=NAMES) from error
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise UseError(
            f"userdp computes on cpu or cuda, got {name!r}: no engine was tried elsewhere",
            hint=NAMES,
        )
    if processes > 1:
        raise UseError(
            "several processes compute only on CPUs: their sums have not been tried on CUDA",
            hint="leave --device out under torchrun, or train in one process",
        )
    if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
        raise UseError(
            f"there is no device {name!r} here: this PyTorch ({torch.__version__}) sees "
            f"{torch.cuda.device_count()} CUDA devices",
            hint="leave --device out for the fastest that there is, or install PyTorch for CUDA",
        )
    return device


def machine_facts(device: torch.device) -> dict[str, Any]:
    """What computes: the processor or accelerator, and the versions that matter for time."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return (names[0] if names else platform.processor()) or platform.machine()
