"""Who may read each output, and what it may hold, by the table of docs/concepts/secrets.md."""

from __future__ import annotations

import fnmatch
from pathlib import Path
from typing import NamedTuple

from tests.secrets.planted import Kind

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "secrets.md"
OPERATOR = "the operator"


class Output(NamedTuple):
    """A kind of output: a row of the table."""

    name: str
    reader: str
    words: str

    @property
    def holds(self) -> frozenset[Kind]:
        """The secrets that it may hold."""
        if self.words.startswith("all of it"):
            return frozenset(Kind)
        what, _, _ = self.words.partition(":")
        words = {Kind.NUMBER: "exact numbers", Kind.DIGEST: "digests of a store's text"}
        return frozenset(kind for kind, said in words.items() if said in what)


_, _, _rest = PAGE.read_text(encoding="utf-8").partition("|---|---|---|\n")
OUTPUTS = [Output(*row[2:-2].split(" | ")) for row in _rest.split("\n\n")[0].splitlines()]


def row(beginning: str) -> Output:
    """The first output whose name begins so."""
    return next(one for one in OUTPUTS if one.name.startswith(beginning))


SCREEN = row("what a command prints")
OPERATORS_SCREEN = row("what a command prints with a notice")

FILES = {
    "*/tokenizer.json": row("`tokenizer.json`"),
    "*store/ledger.json*": row("`STORE/ledger.jsonl`"),
    "*store/*": row("`STORE/`"),
    "*/operator.jsonl */resume.json */checkpoints/* */curves/* */audit/* */.lock */.*.lock *.lock":
        row("`RUN/operator.jsonl`"),
    "*run/ledger.jsonl *run/plan.json *run/train.toml *run/model/* */model/* */adapter/*":
        row("`RUN/ledger.jsonl`"),
    "plan.json": row("the plan"),
    "norms.json scores.arrow": row("the norms"),
    "report.html": row("a report"),
    "public.html summary.html": row("a report with `--public`"),
    "shared/*": row("what `userdp export` writes"),
    "synthetic.jsonl*": row("texts of `userdp generate`"),
    "checked.jsonl*": row("texts of `userdp generate --check`"),
    "sweep/winner/*": row("a tuning's `winner/`"),
    "sweep/*": row("the rest of a tuning's folder"),
    "federation/*": row("a federation's plan"),
    "clean.jsonl": row("the corpus"),
    "clean.jsonl.provenance.json": row("its `.provenance.json`"),
    "trained/runs/*": row("`runs/` of a trainer"),
    "trained/*": row("the rest of the output folder of a trainer"),
}  # fmt: skip
"""Patterns of each output's files, below the folder in which the commands are called: of several
that fit, the first counts."""


def output_of(file: str) -> Output | None:
    """The output that a file is a part of; None of one that nobody declared."""
    for patterns, output in FILES.items():
        if any(fnmatch.fnmatchcase(file, pattern) for pattern in patterns.split()):
            return output
    return None
