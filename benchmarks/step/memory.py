"""The peak memory of a method's step, in a fresh process."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks.decoders import cohort
from benchmarks.step.methods import make
from benchmarks.step.models import SETTINGS, Setting, build


def peak_memory(setting: Setting, method: str, args: argparse.Namespace) -> float:
    """Bytes at the peak of one step in a fresh process, above its imports."""
    command = [sys.executable, "-m", "benchmarks.step", "--child", setting.key, method]
    command += ["--device", args.device, "--sequences", str(args.sequences)]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return float(out.strip().splitlines()[-1])


def child(key: str, method: str, args: argparse.Namespace) -> None:
    setting = next(s for s in SETTINGS if s.key == key)
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the imports
    step = make(
        method,
        setting,
        build(setting, device=args.device),
        cohort(args.sequences, setting.group, setting.shape, device=args.device),
    )
    step()
    if args.device == "cuda":
        print(torch.cuda.max_memory_allocated())
    else:
        print(memory("VmHWM") - before)


def memory(name: str) -> int:
    """Bytes of this process; `getrusage` would begin with the parent's peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))
