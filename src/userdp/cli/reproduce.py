"""``userdp reproduce``: a figure of the papers, as CSV and PNG."""

from __future__ import annotations

from pathlib import Path

from userdp.api.progress import stderr
from userdp.cli.output import Answer
from userdp.papers.harness import RESULTS, Figure


def reproduce(
    name: Figure, /, *, out: Path = Path(), results: Path = RESULTS, overwrite: bool = False
) -> Answer:
    """Compute a figure of the papers and write NAME.csv and NAME.png.

    Figures of trained models are read from the runs of studies, which a checkout holds and
    python -m benchmarks.papers makes.

    Args:
        name: which figure.
        out: the folder to write to.
        results: the folder of the studies' runs.
        overwrite: replace the table and the picture that lie there.
    """
    from userdp.papers.harness import reproduce as compute

    with stderr.status(f"computing {name}"):
        done = compute(name, out, results=results, overwrite=overwrite)
    line = f"{done['rows']} rows: {done['csv']}, {done['png']}"
    return Answer(values=done, parts=[line])
