"""Who may read each output, and what it may hold: the table that docs/concepts/secrets.md shows."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass

from tests.secrets.planted import Kind

NOTHING: frozenset[Kind] = frozenset()
EXACT = frozenset({Kind.NUMBER})
OF_A_STORE = frozenset({Kind.NUMBER, Kind.DIGEST})
EVERYTHING = frozenset(Kind)

OPERATOR, ANYONE = "the operator", "anyone"


@dataclass(frozen=True, kw_only=True)
class Output:
    """A kind of output.

    Args:
        name: in the words of the docs.
        reader: who may read it.
        holds: which secrets it may hold.
        why: where it holds anything, what for; in the words of the docs.
        files: patterns of its files, below the folder in which the commands are called; of several
            outputs whose patterns fit, the first counts. None of what is no file.
    """

    name: str
    reader: str
    holds: frozenset[Kind] = NOTHING
    why: str = ""
    files: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """What it may hold, as the docs say it."""
        if self.holds == EVERYTHING:
            return f"all of it: {self.why}"
        if not self.holds:
            return "nothing of this"
        digests = ", digests of a store's text" if Kind.DIGEST in self.holds else ""
        return f"exact numbers{digests}: {self.why}"


SCREEN = Output(name="what a command prints", reader=ANYONE)
OPERATORS_SCREEN = Output(
    name="what a command prints with a notice that it is operator-only, "
    "and any JSON with `operator_only: true`",
    reader=OPERATOR,
    holds=OF_A_STORE,
    why="counts, losses, norms",
)
ERRORS = Output(name="errors, their traces and causes, warnings, logs, progress", reader=ANYONE)
PROCESSES = Output(
    name="command lines and environments of processes, names of temporary files and what "
    "stays of them",
    reader=ANYONE,
)

OUTPUTS = (
    SCREEN,
    OPERATORS_SCREEN,
    ERRORS,
    PROCESSES,
    Output(
        name="`tokenizer.json`, wherever it lies",
        reader=ANYONE,
        holds=EXACT,
        why="those of a public vocabulary, which the operator chose",
        files=("*/tokenizer.json",),
    ),
    Output(name="`STORE/ledger.jsonl`", reader=OPERATOR, files=("*store/ledger.json*",)),
    Output(
        name="`STORE/`",
        reader=OPERATOR,
        holds=EVERYTHING,
        why="it is the people's text",
        files=("*store/*",),
    ),
    Output(
        name="`RUN/operator.jsonl`, `resume.json`, `loop.json`, `checkpoints/`, `tensorboard/`, "
        "`audit/`",
        reader=OPERATOR,
        holds=OF_A_STORE,
        why="losses, norms, cohort sizes, the store that a resumed run must find again",
        files=(
            "*/operator.jsonl",
            "*/resume.json",
            "*/loop.json",
            "*/checkpoints/*",
            "*/tensorboard/*",
            "*/audit/*",
            "*/.lock",
            "*/.*.lock",
            "*.lock",
        ),
    ),
    Output(
        name="`RUN/ledger.jsonl`, `plan.json`, `train.toml`, `model/`, `adapter/`",
        reader=ANYONE,
        files=(
            "*/run/ledger.jsonl",
            "*/run/plan.json",
            "*/run/train.toml",
            "*/model/*",
            "*/adapter/*",
            "*run/ledger.jsonl",
            "*run/plan.json",
            "*run/train.toml",
            "*run/model/*",
        ),
    ),
    Output(name="the plan of `userdp plan`", reader=ANYONE, files=("plan.json",)),
    Output(
        name="the norms of `userdp probe` and the scores of `userdp score`",
        reader=OPERATOR,
        holds=OF_A_STORE,
        why="norms and losses of people's text",
        files=("norms.json", "scores.arrow"),
    ),
    Output(
        name="a report, and what `--plot` draws",
        reader=OPERATOR,
        holds=EXACT,
        why="the section for the operator; counts and losses",
        files=("report.html", "*.svg"),
    ),
    Output(
        name="a report with `--public`, a summary",
        reader=ANYONE,
        files=("public.html", "summary.html"),
    ),
    Output(name="what `userdp export` writes", reader=ANYONE, files=("shared/*",)),
    Output(
        name="texts of `userdp generate`",
        reader=ANYONE,
        files=("synthetic.jsonl*",),
    ),
    Output(
        name="texts of `userdp generate --check`",
        reader=OPERATOR,
        files=("checked.jsonl*",),
    ),
    Output(
        name="the statement of `members` and `forget` for a person",
        reader=OPERATOR,
        files=("statement.txt",),
    ),
    Output(
        name="a sweep's `winner/`",
        reader=ANYONE,
        files=("sweep/winner/*",),
    ),
    Output(
        name="the rest of a sweep's folder, and of a federation's",
        reader=OPERATOR,
        holds=OF_A_STORE,
        why="the runs of its trials and silos, with all that is the operator's of them",
        files=("sweep/*", "federation/*"),
    ),
)


def output_of(file: str) -> Output | None:
    """The output that a file is a part of; None of one that nobody declared."""
    for output in OUTPUTS:
        if any(fnmatch.fnmatchcase(file, pattern) for pattern in output.files):
            return output
    return None


def table() -> str:
    """The table of the docs."""
    rows = [f"| {one.name} | {one.reader} | {one.words} |" for one in OUTPUTS]
    return "\n".join(["| output | who may read it | ids, text, numbers |", "|---|---|---|", *rows])
