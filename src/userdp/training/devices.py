"""Where a run computes. The claim does not depend on it: a run may continue on another device."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch

from userdp.errors import UseError


def require_device(name: str, *, processes: int = 1) -> torch.device:
    """The device of this name, if this machine has it.

    Args:
        name: "cpu", "cuda" or "cuda:N".
        processes: of the run; several compute only on CPUs.

    Raises:
        UseError: it is none of these, this machine has none, or several processes ask for CUDA.
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
            "several processes compute only on CPUs: their sums have not been tried on CUDA",
            hint="leave --device out under torchrun, or train in one process",
        )
    if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
        raise UseError(
            f"there is no device {name!r} here: this PyTorch ({torch.__version__}) sees "
            f"{torch.cuda.device_count()} CUDA devices",
            hint="leave --device out to train on the CPU, or install PyTorch for CUDA",
        )
    return device


def fastest_device() -> str:
    """CUDA where this PyTorch sees it, else the CPU: the default of what trains nothing."""
    return "cuda" if torch.cuda.is_available() else "cpu"


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
