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
ERRORS = Output(
    name="userdp's own errors and warnings, logs, progress; not the traces and words of other "
    "libraries' errors, which are the operator's",
    reader=ANYONE,
)


def _anyones(name: str, *files: str, holds: frozenset[Kind] = NOTHING, why: str = "") -> Output:
    return Output(name=name, reader=ANYONE, holds=holds, why=why, files=files)


def _operators(name: str, *files: str, holds: frozenset[Kind] = NOTHING, why: str = "") -> Output:
    return Output(name=name, reader=OPERATOR, holds=holds, why=why, files=files)


OUTPUTS = (
    SCREEN,
    OPERATORS_SCREEN,
    ERRORS,
    _anyones(
        "`tokenizer.json`, wherever it lies",
        "*/tokenizer.json",
        holds=EXACT,
        why="those of a public vocabulary, which the operator chose",
    ),
    _operators("`STORE/ledger.jsonl`", "*store/ledger.json*"),
    _operators("`STORE/`", "*store/*", holds=EVERYTHING, why="it is the people's text"),
    _operators(
        "`RUN/operator.jsonl`, `resume.json`, `checkpoints/`, `curves/`, `audit/`",
        "*/operator.jsonl",
        "*/resume.json",
        "*/checkpoints/*",
        "*/curves/*",
        "*/audit/*",
        "*/.lock",
        "*/.*.lock",
        "*.lock",
        holds=OF_A_STORE,
        why="losses, norms, cohort sizes, the store that a resumed run must find again",
    ),
    _anyones(
        "`RUN/ledger.jsonl`, `plan.json`, `train.toml`, `model/`, `adapter/`",
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
    _anyones("the plan of `userdp plan`", "plan.json"),
    _operators(
        "the norms of `userdp plan --norms-out` and the scores of `userdp store score`",
        "norms.json",
        "scores.arrow",
        holds=OF_A_STORE,
        why="norms and losses of people's text",
    ),
    _operators(
        "a report, and what `--plot` draws",
        "report.html",
        "*.svg",
        holds=EXACT,
        why="the section for the operator; counts and losses",
    ),
    _anyones("a report with `--public`, a summary", "public.html", "summary.html"),
    _anyones("what `userdp export` writes", "shared/*"),
    _anyones("texts of `userdp generate`", "synthetic.jsonl*"),
    _operators("texts of `userdp generate --check`", "checked.jsonl*"),
    _operators("the statement of `members` and `forget` for a person", "statement.txt"),
    _anyones("a tuning's `winner/`", "sweep/winner/*"),
    _operators(
        "the rest of a tuning's folder",
        "sweep/*",
        holds=OF_A_STORE,
        why="the runs of its trials, with all that is the operator's of them",
    ),
    _anyones(
        "a federation's plan, model and rounds; a silo's `begun.json` and its last update",
        "federation/*",
    ),
    _operators("the corpus that `userdp store dedup` leaves", "clean.jsonl"),
    _anyones("its `.provenance.json`", "clean.jsonl.provenance.json"),
    _operators(
        "`runs/` of a trainer of Hugging Face's: event files of TensorBoard, which hold the time "
        "of each step",
        "trained/runs/*",
    ),
    _anyones(
        "the rest of the output folder of a trainer of Hugging Face's, with `trainer_state.json` "
        "and logs",
        "trained/*",
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
