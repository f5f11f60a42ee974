"""``userdp reproduce``: a figure of the papers, as CSV and PNG."""

from __future__ import annotations

from pathlib import Path

from userdp.cli.output import Answer
from userdp.commands.progress import stderr
from userdp.errors import UseError
from userdp.papers.harness import RESULTS, Figure


def reproduce(
    name: Figure,
    /,
    *,
    out: Path = Path(),
    results: Path = RESULTS,
    store: list[str] | None = None,
    overwrite: bool = False,
) -> Answer:
    """Compute a figure of the papers and write NAME.csv and NAME.png.

    Figures of trained models are read from the runs of studies, which a checkout holds and
    python -m benchmarks.papers makes. Figures that count what texts hold read the stores that
    --store names, exactly: they are operator-only, and a look is recorded in each store's ledger.

    Args:
        name: which figure.
        out: the folder to write to.
        results: the folder of the studies' runs.
        store: NAME=DIR, a user store and what the table calls it; may be given several times.
            charles-table-2 takes the store called public for the text of pre-training.
        overwrite: replace the table and the picture that lie there.
    """
    from userdp.papers.harness import reproduce as compute

    with stderr.status(f"computing {name}"):
        done = compute(name, out, results=results, stores=_named(store or []), overwrite=overwrite)
    line = f"{done['rows']} rows: {done['csv']}, {done['png']}"
    if done["operator_only"]:
        line += ". They are exact: operator-only, not differentially private."
    return Answer(values=done, parts=[line])


def _named(given: list[str]) -> dict[str, Path]:
    stores: dict[str, Path] = {}
    for one in given:
        name, equals, folder = one.partition("=")
        if not (name and equals and folder) or name in stores:
            raise UseError(
                f"--store takes NAME=DIR, each name once, got {one!r}",
                hint="as --store mail=stores/mail --store chat=stores/chat",
            )
        stores[name] = Path(folder)
    return stores
