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


@dataclass(frozen=True)
class Output:
    """A kind of output.

    Args:
        name: in the words of the docs.
        reader: who may read it.
        files: patterns of its files, below the folder in which the commands are called; of several
            outputs whose patterns fit, the first counts. None of what is no file.
        holds: which secrets it may hold.
        why: where it holds anything, what for; in the words of the docs.
    """

    name: str
    reader: str
    files: str = ""
    holds: frozenset[Kind] = NOTHING
    why: str = ""

    @property
    def words(self) -> str:
        """What it may hold, as the docs say it."""
        if self.holds == EVERYTHING:
            return f"all of it: {self.why}"
        if not self.holds:
            return "nothing of this"
        digests = ", digests of a store's text" if Kind.DIGEST in self.holds else ""
        return f"exact numbers{digests}: {self.why}"


SCREEN = Output("what a command prints", ANYONE)
OPERATORS_SCREEN = Output(
    "what a command prints with a notice that it is operator-only, "
    "and any JSON with `operator_only: true`",
    OPERATOR,
    holds=OF_A_STORE,
    why="counts, losses, norms",
)
ERRORS = Output(
    "userdp's own errors and warnings, logs, progress; not the traces and words of other "
    "libraries' errors, which are the operator's",
    ANYONE,
)

OUTPUTS = (
    SCREEN,
    OPERATORS_SCREEN,
    ERRORS,
    Output(
        "`tokenizer.json`, wherever it lies",
        ANYONE,
        "*/tokenizer.json",
        EXACT,
        "those of a public vocabulary, which the operator chose",
    ),
    Output("`STORE/ledger.jsonl`", OPERATOR, "*store/ledger.json*"),
    Output("`STORE/`", OPERATOR, "*store/*", EVERYTHING, "it is the people's text"),
    Output(
        "`RUN/operator.jsonl`, `resume.json`, `checkpoints/`, `curves/`, `audit/`",
        OPERATOR,
        "*/operator.jsonl */resume.json */checkpoints/* */curves/* */audit/* */.lock */.*.lock "
        "*.lock",
        OF_A_STORE,
        "losses, norms, cohort sizes, the store that a resumed run must find again",
    ),
    Output(
        "`RUN/ledger.jsonl`, `plan.json`, `train.toml`, `model/`, `adapter/`",
        ANYONE,
        "*run/ledger.jsonl *run/plan.json *run/train.toml *run/model/* */model/* */adapter/*",
    ),
    Output("the plan of `userdp plan`", ANYONE, "plan.json"),
    Output(
        "the norms of `userdp plan --norms-out` and the scores of `userdp store score`",
        OPERATOR,
        "norms.json scores.arrow",
        OF_A_STORE,
        "norms and losses of people's text",
    ),
    Output(
        "a report, and what `--plot` draws",
        OPERATOR,
        "report.html *.svg",
        EXACT,
        "the section for the operator; counts and losses",
    ),
    Output("a report with `--public`, a summary", ANYONE, "public.html summary.html"),
    Output("what `userdp export` writes", ANYONE, "shared/*"),
    Output("texts of `userdp generate`", ANYONE, "synthetic.jsonl*"),
    Output("texts of `userdp generate --check`", OPERATOR, "checked.jsonl*"),
    Output("a tuning's `winner/`", ANYONE, "sweep/winner/*"),
    Output(
        "the rest of a tuning's folder",
        OPERATOR,
        "sweep/*",
        OF_A_STORE,
        "the runs of its trials, with all that is the operator's of them",
    ),
    Output(
        "a federation's plan, model and rounds; a silo's `begun.json` and its last update",
        ANYONE,
        "federation/*",
    ),
    Output("the corpus that `userdp store dedup` leaves", OPERATOR, "clean.jsonl"),
    Output("its `.provenance.json`", ANYONE, "clean.jsonl.provenance.json"),
    Output(
        "`runs/` of a trainer of Hugging Face's: event files of TensorBoard, which hold the time "
        "of each step",
        OPERATOR,
        "trained/runs/*",
    ),
    Output(
        "the rest of the output folder of a trainer of Hugging Face's, with `trainer_state.json` "
        "and logs",
        ANYONE,
        "trained/*",
    ),
)


def output_of(file: str) -> Output | None:
    """The output that a file is a part of; None of one that nobody declared."""
    for output in OUTPUTS:
        if any(fnmatch.fnmatchcase(file, pattern) for pattern in output.files.split()):
            return output
    return None


def table() -> str:
    """The table of the docs."""
    rows = [f"| {one.name} | {one.reader} | {one.words} |" for one in OUTPUTS]
    return "\n".join(["| output | who may read it | ids, text, numbers |", "|---|---|---|", *rows])
