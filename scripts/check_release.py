"""Build wheel and sdist, install each into an empty environment, and run the demo from there.

    python scripts/check_release.py            # the latest versions of all dependencies
    python scripts/check_release.py --lowest   # the lowest that pyproject.toml allows

PyTorch stays the build that ``constraints-cpu.txt`` names.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONSTRAINTS = ROOT / "constraints-cpu.txt"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lowest", action="store_true", help="the lowest versions allowed")
    lowest = parser.parse_args().lowest
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        run(sys.executable, "-m", "build", "--outdir", place / "dist", ROOT)
        for package in sorted((place / "dist").iterdir()):
            print(f"== {package.name}", flush=True)
            check(package, place / package.suffix[1:], lowest=lowest)
            if lowest:
                break  # the sdist has the same dependencies


def check(package: Path, place: Path, *, lowest: bool) -> None:
    """Install one package and run its demo in an empty folder."""
    place.mkdir()
    environment = place / "venv"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    limits = ["--constraint", CONSTRAINTS]
    if lowest:
        pins = place / "lowest.txt"
        pins.write_text("\n".join(lowest_versions()) + "\n")
        limits += ["--constraint", pins]
    run(python, "-m", "pip", "install", "--quiet", *limits, package)
    run(python, "-m", "pip", "check")
    run(python, "-m", "pip", "list", "--format", "freeze")
    folder = place / "empty"
    folder.mkdir()
    command = environment / "bin" / "userdp"
    run(command, "--version", cwd=folder)
    run(command, "demo", "--out", "demo", cwd=folder)


def lowest_versions() -> list[str]:
    """A pin for each dependency of the base install, torch left out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    pairs = [re.fullmatch(r"([\w-]+)>=([\d.]+)", one) for one in project["dependencies"]]
    return [f"{pair[1]}=={pair[2]}" for pair in pairs if pair and pair[1] != "torch"]


def run(*command: object, cwd: Path | None = None) -> None:
    """A command that must succeed, without what this environment would lend it."""
    lent = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if name not in lent}
    subprocess.run([str(part) for part in command], check=True, cwd=cwd, env=kept)


if __name__ == "__main__":
    main()
