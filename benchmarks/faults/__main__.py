"""Plants the faults of ``planted.toml``, one at a time, in a copy of ``src``; tests must notice.

    python -m benchmarks.faults [NAME ...] [--json]

*Killed*: a test that the fault names fails with it, and passes without it. The exit status is 0 if
all are killed. A hundred faults take about half an hour of one core.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).parent / "planted.toml"
PATIENCE = 600
"""Seconds. A fault by which a test does not end is no kill: nobody waits for it to be named."""


def read_faults() -> dict[str, dict[str, Any]]:
    """By name: ``invariant``, ``what``, ``file`` below src/userdp, ``old``, ``new``, ``tests``."""
    faults = tomllib.loads(LIST.read_text("utf-8"))["fault"]
    return {fault["name"]: fault for fault in faults}


def planted(fault: dict[str, Any]) -> str:
    """The file's text with the fault in it.

    Raises:
        ValueError: the old text is not there, or not once.
    """
    text = (ROOT / "src/userdp" / fault["file"]).read_text("utf-8")
    if text.count(fault["old"]) != 1:
        raise ValueError(f"{fault['name']}: its old text is not once in {fault['file']}")
    return text.replace(fault["old"], fault["new"])


def first_failure(source: Path, tests: list[str]) -> str | None:
    """The first of the tests that fails with this source; None if all pass.

    Raises:
        RuntimeError: the tests did not run.
    """
    path = os.pathsep.join([str(source), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    failed = re.search(r"^FAILED (.+?)(?: - |$)", done.stdout, re.MULTILINE)
    if done.returncode not in (0, 1) or (done.returncode == 1 and failed is None):
        raise RuntimeError(done.stdout[-500:])
    return failed.group(1) if failed else None


def verdict(fault: dict[str, Any], source: Path) -> str:
    """``killed by TEST``, or what else became of it."""
    place = source / "userdp" / fault["file"]
    sound = place.read_text("utf-8")
    try:
        place.write_text(planted(fault), "utf-8")
        test = first_failure(source, fault["tests"])
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return f"error: {error}"
    finally:
        place.write_text(sound, "utf-8")
    if test is None:
        return "survived"
    if first_failure(source, [test]) is not None:
        return f"error: {test} fails without the fault too"
    return f"killed by {test}"


def main() -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="all of them by default")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    faults = read_faults()
    told = {}
    with tempfile.TemporaryDirectory(prefix="userdp-faults-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        for name in options.names or faults:
            told[name] = verdict(faults[name], source)
            print(f"{name}: {told[name]}", file=sys.stderr, flush=True)
    killed = sum(one.startswith("killed") for one in told.values())
    print(json.dumps(told) if options.json else f"{killed} of {len(told)} faults killed")
    return int(killed < len(told))


if __name__ == "__main__":
    sys.exit(main())
