"""``userdp reproduce``: a figure of the papers, as CSV and PNG."""

from __future__ import annotations

from pathlib import Path

from userdp.cli.output import emit, stderr
from userdp.papers.harness import Figure


def reproduce(
    name: Figure,
    /,
    *,
    out: Path = Path(),
    json: bool = False,
) -> None:
    """Compute a figure of the papers with our accountant and write NAME.csv and NAME.png.

    Args:
        name: which one.
        out: the folder to write to.
        json: print one JSON object on stdout.
    """
    from userdp.papers.harness import reproduce as compute

    with stderr.status(f"computing {name}"):
        done = compute(name, out)
    result = {"name": done.name, "rows": done.rows, "csv": str(done.csv), "png": str(done.png)}
    emit(
        result,
        json=json,
        render=lambda console: console.print(f"{done.rows} rows: {done.csv}, {done.png}"),
    )
