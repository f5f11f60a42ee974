"""The machine that a run is on, for its operator."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import torch


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
