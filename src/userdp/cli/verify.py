"""``userdp verify``: is a store what was written?"""

from __future__ import annotations

from pathlib import Path

from userdp.cli.output import Answer


def verify(store: Path, /, *, quick: bool = False) -> Answer:
    """Check a store's files, index and content against what was written.

    The exit status is 0 where all is well, and 1 where something differs; it is then named.

    Args:
        store: the folder that `userdp prepare` wrote.
        quick: compare the files with their checksums, without reading the tokens by the index.
    """
    from userdp.cli.progress import StepBar
    from userdp.data.verify import verify_store

    with StepBar() as bar:
        checked = verify_store(store, deep=not quick, progress=bar)
    return Answer(
        values={"store": str(store), **checked.to_dict()},
        parts=[
            *checked.problems,
            f"{checked.files} files, {checked.bytes:,} bytes, {checked.examples:,} examples: "
            + ("as written" if checked.ok else f"{len(checked.problems)} problem(s)"),
        ],
        status=0 if checked.ok else 1,
    )
