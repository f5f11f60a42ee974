"""``python -m benchmarks.gpu``; see the package."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import benchmarks.gpu
from benchmarks.gpu.parts import all_parts, run
from benchmarks.gpu.setting import Setting


def main() -> None:
    assert benchmarks.gpu.__doc__ is not None
    parser = argparse.ArgumentParser(description=benchmarks.gpu.__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON; tables go beside it")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--tiny", action="store_true", help="tiny models: only runs the code")
    parser.add_argument("--seconds", type=float, default=450)
    parser.add_argument("--memory-gib", type=float, default=24, help="budget of the memory parts")
    parser.add_argument("--only", nargs="*", metavar="PART", choices=list(all_parts()))
    parser.add_argument("--again", action="store_true", help="forget what the file holds")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device; --device cpu --tiny runs the same code")
    setting = Setting(device=args.device, tiny=args.tiny, memory_gib=args.memory_gib)
    document = run(setting, args.out, limit=args.seconds, again=args.again, only=args.only)
    failed = [n for n, part in document["parts"].items() if part.get("passed") is False]
    raise SystemExit(f"not exact or not sound: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
