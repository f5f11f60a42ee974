"""Whether the design of every study was committed before the first of its results.

    python scripts/designs_precede.py        # exit status 1 if one was not

For each ``docs/results/papers/NAME.jsonl``, and for the preset's grid: every row carries the
SHA-256 of a design file. Of each such digest the first commit that holds a file of it must come
before the first commit that holds a row with it, and be no newer than the row's date. Dates are the
authors', which a rebase keeps.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path

RESULTS = Path("docs/results/papers")
DESIGNS = Path("papers/designs")
BEFORE = RESULTS / "designs"
"""Where the designs lay until they moved: their first commits are there."""


RECIPE = Path("docs/results/recipe-rows.jsonl"), Path("benchmarks/recipe.toml")


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], check=True, capture_output=True).stdout


def commits_of(path: Path) -> list[str]:
    """The commits that changed a file, oldest first; merges are looked into."""
    return (
        git("log", "--reverse", "--full-history", "--format=%H", "--", str(path)).decode().split()
    )


def first_commits(*paths: Path) -> dict[str, str]:
    """By the digest of each version of a design: the first commit that holds it."""
    first: dict[str, str] = {}
    for path in paths:
        for commit in commits_of(path):
            try:
                content = git("show", f"{commit}:{path}")
            except subprocess.CalledProcessError:  # removed there
                continue
            first.setdefault(hashlib.sha256(content).hexdigest(), commit)
    return first


def first_rows(path: Path) -> dict[str, tuple[str, str]]:
    """By a design's digest: the first commit with a row of it, and the earliest row's date."""
    first: dict[str, tuple[str, str]] = {}
    for commit in commits_of(path):
        try:
            content = git("show", f"{commit}:{path}").decode()
        except subprocess.CalledProcessError:
            continue
        for line in content.splitlines():
            row = json.loads(line)
            held, date = first.get(row["design"], (commit, row["date"]))
            first[row["design"]] = (held, min(date, row["date"]))
    return first


def precedes(earlier: str, later: str) -> bool:
    if earlier == later:
        return False
    ancestor = ["git", "merge-base", "--is-ancestor", earlier, later]
    return subprocess.run(ancestor, check=False).returncode == 0


def problem(results: Path, *designs: Path) -> str | None:
    """What is wrong with one study; None if nothing is."""
    held = first_commits(*designs)
    for digest, (commit, date) in first_rows(results).items():
        if digest not in held:
            return f"rows of a design {digest[:8]} that no commit holds"
        if not precedes(held[digest], commit):
            return f"the design of commit {held[digest][:8]} is not before its rows of {commit[:8]}"
        made = datetime.fromisoformat(
            git("log", "-1", "--format=%aI", held[digest]).decode().strip()
        )
        if made > datetime.fromisoformat(date):
            return f"a row of {date} is older than its design's commit of {made.isoformat()}"
    return None


def main() -> None:
    wrong = 0
    studies = [
        (results, BEFORE / f"{results.stem}.toml", DESIGNS / f"{results.stem}.toml")
        for results in sorted(RESULTS.glob("*.jsonl"))
    ]
    for results, *designs in [*studies, RECIPE]:
        found = problem(results, *designs)
        wrong += found is not None
        print(f"{results.stem:28} {'ok: design before results' if found is None else found}")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
