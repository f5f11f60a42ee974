"""``userdp reproduce``: a figure of the papers, as CSV and PNG."""

from __future__ import annotations

from pathlib import Path

from userdp.api.progress import stderr
from userdp.cli.output import Answer
from userdp.papers.harness import Figure


def reproduce(name: Figure, /, *, out: Path = Path(), overwrite: bool = False) -> Answer:
    """Compute a figure of the papers with our accountant and write NAME.csv and NAME.png.

    Args:
        name: which figure.
        out: the folder to write to.
        overwrite: replace the table and the picture that lie there.
    """
    from userdp.papers.harness import reproduce as compute

    with stderr.status(f"computing {name}"):
        done = compute(name, out, overwrite=overwrite)
    line = f"{done['rows']} rows: {done['csv']}, {done['png']}"
    return Answer(values=done, parts=[line])
