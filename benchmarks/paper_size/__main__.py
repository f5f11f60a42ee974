"""``python -m benchmarks.paper_size``; see the package."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from collections import Counter

import torch

import benchmarks.paper_size
from benchmarks.allocator import KEEP, RETURN
from benchmarks.faults.planted import digest_of_source
from benchmarks.paper_size.measure import peak, rounds
from benchmarks.paper_size.page import page
from benchmarks.paper_size.settings import (
    MEASURED,
    SETTINGS,
    TRIALS,
    Setting,
    build,
    setting_of,
)
from benchmarks.rows import add_options, add_row, now, whole_rows
from userdp.gradients import trainable_parameters


def main() -> None:
    assert benchmarks.paper_size.__doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper_size",
        description=benchmarks.paper_size.__doc__.splitlines()[0],
    )
    add_options(parser, results=str(MEASURED), skipped="the rounds that it has")
    keys = [setting.key for setting in [*SETTINGS, *TRIALS]]
    parser.add_argument("--only", nargs="+", metavar="KEY", choices=keys, help="these settings")
    parser.add_argument("--rounds", type=int, default=3, help="of each setting")
    parser.add_argument("--child", nargs=2, metavar=("KEY", "WHAT"), help=argparse.SUPPRESS)
    parser.add_argument("--only-page", action="store_true", help="measure nothing")
    options = parser.parse_args()
    if options.child:
        key, what = options.child
        _child(key, what, options)
        return
    chosen = [setting_of(key) for key in options.only or [s.key for s in SETTINGS]]
    if not options.only_page:
        for setting in chosen:
            _measure(setting, options)
    if options.page:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, PyTorch {torch.__version__}"
        text = page(
            list(whole_rows(options.results)),
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            machine=machine,
        )
        options.page.write_text(text, encoding="utf-8")


def _measure(setting: Setting, options: argparse.Namespace) -> None:
    """What is missing of a setting, each part in a process of its own."""
    rows = list(whole_rows(options.results))
    done = Counter("peak" if "peak" in row else "rounds" for row in rows if _of(row, setting))
    if not done["peak"]:
        sizes = {m: int(_run(setting, m, options)) for m in ("plain", "private")}
        with torch.device("meta"):
            trained = sum(p.numel() for p in trainable_parameters(build(setting)).values())
        add_row(
            options.results,
            {
                "setting": setting.key,
                "peak": sizes,
                "trained": trained,
                "source": digest_of_source(),
                "date": now(),
            },
        )
        print(setting.key, "peak", sizes, flush=True)
    if done["rounds"] < options.rounds:
        _run(setting, f"rounds:{done['rounds']}", options)


def _of(row: dict[str, object], setting: Setting) -> bool:
    return row["setting"] == setting.key


def _run(setting: Setting, what: str, options: argparse.Namespace) -> str:
    command = [sys.executable, "-m", "benchmarks.paper_size", "--child", setting.key, what]
    command += ["--results", str(options.results), "--rounds", str(options.rounds)]
    if what.startswith("rounds"):
        subprocess.run(command, check=True, env={**os.environ, **KEEP})
        return ""
    out = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **RETURN}
    ).stdout
    return str(json.loads(out.strip().splitlines()[-1]))


def _child(key: str, what: str, options: argparse.Namespace) -> None:
    setting = setting_of(key)
    if what.startswith("rounds"):
        rounds(
            setting,
            done=int(what.partition(":")[2]),
            wanted=options.rounds,
            results=options.results,
            notes={"source": digest_of_source()},
        )
    else:
        print(peak(setting, what))


if __name__ == "__main__":
    main()
