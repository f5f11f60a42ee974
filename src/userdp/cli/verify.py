"""``userdp verify``: is a store what was written?"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from userdp.cli.output import emit


def verify(store: Path, /, *, quick: bool = False, json: bool = False) -> int:
    """Check a store's files, index and content against what was written.

    Exit status 0: all is well; 1: something differs, and what.

    Args:
        store: the folder that `userdp prepare` wrote.
        quick: compare the files with their checksums, without reading the tokens by the index.
        json: print one JSON object on stdout.
    """
    from userdp.cli.progress import StepBar
    from userdp.data.verify import Verification, verify_store

    with StepBar() as bar:
        result = verify_store(store, deep=not quick, progress=bar)

    def show(console: Console, found: Verification = result) -> None:
        for problem in found.problems:
            console.print(problem, markup=False, soft_wrap=True)
        console.print(
            f"{found.files} files, {found.bytes:,} bytes, {found.examples:,} examples: "
            + ("as written" if found.ok else f"{len(found.problems)} problem(s)"),
            soft_wrap=True,
        )

    emit({"store": str(store), **result.to_dict()}, json=json, render=show)
    return 0 if result.ok else 1
