"""``python -m benchmarks.step``; see the package."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch
from rich.console import Console

import benchmarks.step
from benchmarks.allocator import begin_again_keeping
from benchmarks.step.measure import measure
from benchmarks.step.memory import child, peak_memory
from benchmarks.step.methods import methods_of
from benchmarks.step.models import SETTINGS
from benchmarks.step.report import flat, show


def main() -> None:
    assert benchmarks.step.__doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.step", description=benchmarks.step.__doc__.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="end within 50 s on 2 cores")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--verbose", action="store_true", help="each round's medians on stderr")
    parser.add_argument("--runs", type=int, default=15, help="rounds after the warm-up")
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=3600, help="stop a setting after this")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--allocator", choices=["default", "keep"], default="default")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--only", nargs="*", default=None, help="keys of settings, or full_step")
    parser.add_argument("--methods", nargs="*", default=None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(*args.child, args)
        return
    if args.allocator == "keep":
        begin_again_keeping()
    settings = [s for s in SETTINGS if args.only is None or s.key in args.only]
    if args.quick:
        settings = [s for s in settings if s.width == 256]
        args.sequences, args.runs, args.seconds = (
            min(args.sequences, 16),
            8,
            16 / max(1, len(settings)),
        )
    whole: dict[str, Any] = {}
    if "full_step" in args.only if args.only is not None else not args.quick:
        from benchmarks import full_step

        seconds = 10 if args.quick else args.seconds
        whole = full_step.measure(args, time.monotonic() + seconds)
    results = []
    for setting in settings:
        methods = args.methods or methods_of(setting, quick=args.quick)
        methods = list(dict.fromkeys(["plain", *methods]))  # the base of every ratio
        result = measure(setting, methods, args, time.monotonic() + args.seconds)
        if not args.no_memory and not args.quick:
            result["memory"] = {
                method: peak_memory(setting, method, args)
                for method in methods
                if method not in result["skipped"]
            }
        results.append(result)
    if args.json:
        facts = {
            "device": args.device,
            "clock": args.clock,
            "allocator": args.allocator,
            "sequences": args.sequences,
            "threads": torch.get_num_threads(),
            "torch": torch.__version__,
        }
        print(json.dumps({**flat(results), **whole, **facts}))
    show(results, whole, Console(stderr=args.json))


if __name__ == "__main__":
    main()
