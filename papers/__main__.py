"""The papers' figures, tables and studies, from a checkout.

    python -m papers                          # all of them, with their verdicts
    python -m papers NAME                     # compute one; a study's missing runs are made first
    python -m papers NAME --describe          # what the paper found, what we find, what is missing
    python -m papers page                     # write docs/results/findings.md

A figure's table goes to ``docs/results/papers/tables`` and its picture to ``docs/results``, or both
to ``--out``. What counts user stores (``--store NAME=DIR``) is exact: it wants ``--out``, only its
owner may read it, and a look is recorded in each store's ledger. A study goes on where it stopped;
its rows are ``docs/results/papers/DESIGN.jsonl``. ``--json`` prints one object.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from papers.design import read_declared
from papers.figures import FIGURES, design_of, entry, page, write_figure
from papers.runs import RESULTS, Campaign, missing_runs
from userdp.core.errors import UseError, UserdpError

TABLES, PICTURES = RESULTS / "tables", RESULTS.parent


def main(arguments: list[str] | None = None) -> int:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m papers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", choices=[*FIGURES, "page"], metavar="NAME")
    parser.add_argument("--describe", action="store_true", help="compute nothing")
    parser.add_argument("--out", type=Path, help="a folder for the table and the picture")
    parser.add_argument("--store", action="append", default=[], metavar="NAME=DIR")
    parser.add_argument("--work", type=Path, default=Path("runs/papers"), help="of stores and runs")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    try:
        told, words = _do(options)
    except UserdpError as error:
        told, words = {"error": error.message, "hint": error.hint}, f"error: {error.message}"
        print(json.dumps(told) if options.json else f"{words}\nhint: {error.hint}", file=sys.stderr)
        return error.exit_status
    print(json.dumps(told, ensure_ascii=False) if options.json else words)
    return 0


def _do(options: argparse.Namespace) -> tuple[dict[str, Any], str]:
    """One call: its answer as an object and in words."""
    name: str | None = options.name
    if name is None:
        verdicts = {one: str(entry(one).finding.verdict) for one in FIGURES}
        return verdicts, "\n".join(f"{one:24} {verdict}" for one, verdict in verdicts.items())
    if name == "page":
        path = RESULTS.parent / "findings.md"
        path.write_text(page({one: entry(one) for one in FIGURES}), encoding="utf-8")
        return {"page": str(path)}, str(path)
    design = design_of(name)
    campaign = Campaign(
        work=options.work,
        results=RESULTS,
        declared=read_declared(),
        say=lambda text: print(text, file=sys.stderr, flush=True),
    )
    if options.describe:
        one = entry(name)
        paper, found = FIGURES[name]["paper"], one.finding
        told = {"paper": paper, "here": found.here, "verdict": str(found.verdict)}
        if design is not None:
            rows = campaign.rows(design)
            missing = len(missing_runs(design, rows))
            told["question"] = design.question
            told["runs"] = f"{len(rows)} of {design.runs}, {missing} can be made now"
        return told, "\n".join(f"{key:9} {value}" for key, value in told.items())
    if design is not None:
        campaign.run(design)
    stores = _named(options.store)
    if stores and options.out is None:
        raise UseError(
            "what counts stores is for their operator only, and docs/results is for anyone",
            hint="name a folder of your own: --out DIR",
        )
    done = write_figure(name, options.out or TABLES, stores=stores)
    if options.out is None:
        done["png"] = str(Path(done["png"]).replace(PICTURES / f"{name}.png"))
    return done, f"{done['rows']} rows: {done['csv']}, {done['png']}"


def _named(given: list[str]) -> dict[str, Path]:
    named: dict[str, Path] = {}
    for one in given:
        name, equals, path = one.partition("=")
        if not (name and equals and path) or name in named:
            raise UseError(
                f"NAME=PATH is wanted, each name once, and {one!r} is given",
                hint="as --store mail=stores/mail --store chat=stores/chat",
            )
        named[name] = Path(path)
    return named


if __name__ == "__main__":
    sys.exit(main())
