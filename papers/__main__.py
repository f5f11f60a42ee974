"""``python -m papers NAME``: a figure of the papers, as CSV and PNG."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from papers.harness import RESULTS, Figure, reproduce
from userdp.errors import UserdpError


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m papers", description=__doc__)
    parser.add_argument("name", choices=[str(figure) for figure in Figure])
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--store", action="append", default=[], metavar="NAME=DIR")
    parser.add_argument("--overwrite", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    stores = {name: Path(folder) for name, _, folder in (s.partition("=") for s in options.store)}
    try:
        done = reproduce(
            Figure(options.name),
            options.out,
            results=options.results,
            stores=stores,
            overwrite=options.overwrite,
        )
    except UserdpError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return error.exit_status
    print(
        json.dumps(done) if options.json else f"{done['rows']} rows: {done['csv']}, {done['png']}"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
