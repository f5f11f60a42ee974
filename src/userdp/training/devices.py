"""Where a run computes. The claim does not depend on it: a run may continue on another device."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from userdp.errors import UseError
from userdp.vocabulary import require_count

AUTO: Final = "auto"
NAMES: Final = "auto, cpu, cuda or cuda:N"


def choose_device(name: str = AUTO, *, processes: int = 1) -> torch.device:
    """The device of this name, if this machine has it; of several processes, this process's own.

    Args:
        name: "cpu", "cuda", "cuda:N", or "auto": CUDA where this PyTorch sees a device for each
            process of this machine, else the CPU. Of several processes "cuda" is the device of the
            number that torchrun gives each (``LOCAL_RANK``).
        processes: of the run, on all machines.

    Raises:
        UseError: it is none of these, this machine has none, or two processes would share one.
    """
    if name == AUTO:
        return _cuda(processes) if _enough(processes) else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UseError(f"there is no device {name!r}", hint=NAMES) from error
    return device if device.type == "cpu" else _accelerator(name, device, processes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """Where one of several processes that run side by side computes.

    Args:
        device: as that process knows it, for its ``--device``.
        environment: to start it with. Where it has a CUDA device of its own that is the only one
            it sees, so that it takes no memory of the others'.
        here: the same device as this process knows it.
    """

    device: str
    environment: Mapping[str, str]
    here: str


def seats(name: str, jobs: int) -> list[Seat]:
    """A seat for each of ``jobs`` processes that run side by side, on this machine.

    With ``cuda``, and ``auto`` where there is CUDA, each has a device of its own. One that is named
    (``cuda:1``) is shared by all, and so is the CPU, whose cores they divide.

    Raises:
        UseError: there is no such device, or ``cuda`` and ``auto`` find fewer than ``jobs``.
    """
    require_count("jobs", jobs, at_most=256)
    chosen = choose_device(name)
    cores = str(max(1, (os.cpu_count() or 1) // jobs))
    threads = {} if jobs == 1 or "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": cores}
    if jobs == 1 or chosen.type != "cuda" or ":" in name:
        return [Seat(device=name, environment=threads, here=name)] * jobs
    there = torch.cuda.device_count()
    if jobs > there:
        raise UseError(
            f"{jobs} processes at a time want a CUDA device each, and there are {there}",
            hint=f"give --jobs {there}; or let them share one (--device cuda:0) or the CPU "
            "(--device cpu)",
        )
    # Of the devices that this process sees, which may be a part of the machine's already.
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    ids = [str(n) for n in range(there)] if seen is None else seen.split(",")
    return [
        Seat(
            device="cuda",
            environment={**threads, "CUDA_VISIBLE_DEVICES": ids[place].strip()},
            here=f"cuda:{place}",
        )
        for place in range(jobs)
    ]


def local_processes() -> int:
    """The processes that torchrun started on this machine; 1 without it."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def _enough(processes: int) -> bool:
    """Whether each process on this machine can have a CUDA device of its own."""
    if not torch.cuda.is_available():
        return False
    return processes == 1 or (
        "LOCAL_RANK" in os.environ and torch.cuda.device_count() >= local_processes()
    )


def _cuda(processes: int) -> torch.device:
    if processes == 1:
        return torch.device("cuda")
    return torch.device("cuda", int(os.environ["LOCAL_RANK"]))


def _accelerator(name: str, device: torch.device, processes: int) -> torch.device:
    """The device that is no CPU, if this machine has it and userdp computes on its kind."""
    if device.type != "cuda":
        raise UseError(
            f"userdp computes on cpu or cuda, got {name!r}: no engine was tried elsewhere",
            hint=NAMES,
        )
    if processes > 1:
        return _own_of_several(name, device)
    if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
        raise _not_there(name)
    return device


def _own_of_several(name: str, device: torch.device) -> torch.device:
    """The device of this process, where several compute on CUDA."""
    if "LOCAL_RANK" not in os.environ:
        raise UseError(
            "several processes that compute on CUDA need a device each, and nothing tells which is "
            "this one's: LOCAL_RANK is not set",
            hint="start them with torchrun",
        )
    if device.index is not None and local_processes() > 1:
        raise UseError(
            f"all {local_processes()} processes of this machine would compute on {name}: each "
            "needs a device of its own",
            hint="give --device cuda; each process then takes the device of its LOCAL_RANK",
        )
    own = _cuda(local_processes()) if device.index is None else device
    if not torch.cuda.is_available() or (own.index or 0) >= torch.cuda.device_count():
        raise _not_there(str(own))
    return own


def _not_there(name: str) -> UseError:
    return UseError(
        f"there is no device {name!r} here: this PyTorch ({torch.__version__}) sees "
        f"{torch.cuda.device_count()} CUDA devices",
        hint="leave --device out for the fastest that there is, or install PyTorch for CUDA; "
        "under torchrun, start at most as many processes as there are devices",
    )


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
