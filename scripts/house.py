"""Count the bare code of each package: what is left without docstrings, comments, blanks, imports.

Usage: python scripts/house.py [--json] [FOLDER ...]        (default: src/userdp)

A line counts when at least one token of code stands on it. Lines of a docstring or of any other
string that is a statement of its own, comments, blank lines and import statements do not count, so
the figure falls only when code is joined or deleted, not when it is explained less.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import tokenize
from collections import Counter
from pathlib import Path

_SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


def bare_lines(source: str) -> int:
    """The number of lines of ``source`` that hold code.

    >>> bare_lines("import os  # why\\n\\nx = 1  # why\\n# words\\ny = [\\n    2,\\n]\\n")
    4
    """
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        silent = isinstance(node, ast.Import | ast.ImportFrom) or (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        )
        if silent and isinstance(node, ast.stmt):
            lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def count(folder: Path) -> Counter[str]:
    """Bare lines by package (first folder below ``folder``, or the file itself)."""
    totals: Counter[str] = Counter()
    for path in sorted(folder.rglob("*.py")):
        package = path.relative_to(folder).parts[0]
        totals[package] += bare_lines(path.read_text(encoding="utf-8"))
    return totals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path, default=[Path("src/userdp")])
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    totals: Counter[str] = Counter()
    for folder in arguments.folders:
        totals += count(folder)
    if arguments.json:
        print(json.dumps({"packages": dict(totals), "total": totals.total()}))
        return
    for package, lines in sorted(totals.items()):
        print(f"{lines:7,}  {package}")
    print(f"{totals.total():7,}  total")


if __name__ == "__main__":
    main()
