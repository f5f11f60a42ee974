"""The device of a run. The claim does not depend on it: a run may continue on another device."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from userdp.core.errors import UseError

AUTO: Final = "auto"
NAMES: Final = "auto, cpu, cuda or cuda:N"
_KIND = "cuda"
"""The one kind of accelerator that the engines were tried on."""


def choose_device(name: str = AUTO, *, processes: int = 1) -> torch.device:
    """The device of this name, if this machine has it; of several processes, this process's own.

    Args:
        name: "cpu", "cuda", "cuda:N", or "auto": CUDA where this PyTorch sees a device for each
            process of this machine, else the CPU. Of several processes "cuda" is the device of the
            number that torchrun gives each (``LOCAL_RANK``).
        processes: of the run, on all machines.

    Raises:
        UseError: it is none of these, or this machine has none.
    """
    there, rank = accelerators(), os.environ.get("LOCAL_RANK")
    several = processes > 1
    if name == AUTO:
        enough = there >= local_processes() and rank is not None if several else there > 0
        name = _KIND if enough else "cpu"
    if name == "cpu":
        return torch.device(name)
    if not re.fullmatch(rf"{_KIND}(:\d+)?", name):
        raise UseError(f"userdp computes on a CPU or on CUDA, not on {name!r}", hint=NAMES)
    device = torch.device(name)
    if several and ":" not in name:
        device = torch.device(_KIND, int(rank or 0))
    elif several and local_processes() > 1:
        raise UseError(
            f"all {local_processes()} processes of this machine would compute on {name}",
            hint="give --device cuda; each process then takes the device of its LOCAL_RANK",
        )
    if (device.index or 0) >= there:
        raise UseError(
            f"no device '{device}' here: PyTorch {torch.__version__} sees {there} CUDA devices",
            hint="leave --device out, install PyTorch for CUDA, or start a process for each device",
        )
    return device


def require_computable(model: nn.Module) -> None:
    """`UseError` of weights that lie where the engines were not tried, or nowhere (offloaded)."""
    if others := {p.device.type for p in model.parameters()} - {"cpu", _KIND}:
        raise UseError(
            f"weights lie on {', '.join(sorted(others))}, and private steps need a CPU or CUDA",
            hint="move the model (a trainer: use_cpu=True), and load it without device_map, which "
            "leaves offloaded weights on meta",
        )


def accelerators() -> int:
    """The number of accelerators that this PyTorch sees."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def local_processes() -> int:
    """The processes that torchrun started on this machine; 1 without it."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def machine_facts(device: torch.device) -> dict[str, Any]:
    """The processor or accelerator, and the versions that matter for time."""
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return (names[0] if names else platform.processor()) or platform.machine()
