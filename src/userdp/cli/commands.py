"""The commands of ``userdp``, as a table; each is imported when it is called."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

from cyclopts import App, Group, Parameter

from userdp.cli.program import Command, for_a_line
from userdp.version import __version__

_ACCOUNT = "--sampling users --sampling-probability 0.01 --steps 1000 --delta 1e-6"


@dataclass(frozen=True, slots=True)
class Told:
    """What is said of a command without importing it.

    Args:
        line: one line of help.
        example: arguments that one can run.
    """

    line: str
    example: str


COMMANDS: dict[str, dict[str, Told]] = {
    "Begin": {
        "demo": Told("Do all of it in small, on text that is on every machine.", "--out demo"),
        "completion": Told("Write completions for your shell.", "bash"),
    },
    "Data": {
        "prepare": Told("Turn records into a user store.", "mail.jsonl.gz --out store"),
        "dedup": Told(
            "Remove from a public corpus what overlaps with private records (operator-only).",
            "public.jsonl.gz mail.jsonl.gz --out clean.jsonl.gz",
        ),
        "stats": Told("Count a store's users and examples (operator-only).", "store"),
        "score": Told(
            "Score examples by perplexity, for train --selection (operator-only).",
            "store --out scores.arrow",
        ),
    },
    "Plan": {
        "account": Told(
            "Compute the (epsilon, delta) of a mechanism or of a ledger; reads no data.",
            f"{_ACCOUNT} --noise-multiplier 1",
        ),
        "calibrate": Told("Find the least noise for a budget.", f"{_ACCOUNT} --epsilon 4"),
        "probe": Told(
            "Measure gradient norms for the planner (operator-only).",
            "store --out norms.json",
        ),
        "plan": Told(
            "Choose group size, cohort size and noise, and ELS or ULS, for a budget.",
            "store --budget 64 --steps 50 --epsilon 4 --norms norms.json --population 1000 "
            "--out plan.json",
        ),
    },
    "Train": {
        "train": Told(
            "Fine-tune a model with user-level differential privacy.",
            "store --out run --epsilon 4 --population 20000",
        ),
        "sweep": Told(
            "Train a grid of settings and choose one, at a claim that covers the choice.",
            "store --out sweep --plan plan.json --tuning composition --learning-rate 0.001 0.003",
        ),
        "federate": Told(
            "Train across silos with privacy for subjects (Flower).",
            "digits --out federation",
        ),
    },
    "Use and check": {
        "evaluate": Told(
            "Measure loss and perplexity on held-out text (operator-only, or under DP).",
            "run --store store",
        ),
        "generate": Told(
            "Sample text or a synthetic data set from a run's model.",
            "run --records 1000 --out synthetic.jsonl",
        ),
        "personalize": Told(
            "Measure what held-out users gain from a model of their own (operator-only).",
            "run --store store",
        ),
        "audit": Told(
            "Attack a run and bound its epsilon from below (operator-only).",
            "run --store store",
        ),
        "report": Told(
            "Write one HTML page: claim, assumptions, curves; and a summary of one sheet.",
            "run --out report.html",
        ),
        "export": Told(
            "Write a folder of all that may leave of a run: model, card, ledger, report.",
            "run --out shared",
        ),
        "verify": Told(
            "Check a store, a run, a model or an export, and recompute its claim.",
            "run",
        ),
        "selftest": Told(
            "Check the invariants on this machine, device and model.",
            "--model bundled",
        ),
    },
    "A store's life": {
        "budget": Told(
            "Show what a store's people were charged, or fix a total for its life.",
            "store --epsilon 8 --delta 1e-6",
        ),
        "settle": Told("End a run before its plan, and charge what that costs.", "run"),
        "members": Told(
            "Say who was in a store for what was charged, and what each was charged.", "store"
        ),
        "forget": Told(
            "Erase a person from a store, and prove it by a scan.",
            "store --user ann@example.org",
        ),
    },
}
"""Heading to commands, both in the order in which ``userdp --help`` shows them."""

_HELP = """Fine-tune language models with user-level differential privacy.

Every command takes --json (one JSON object on stdout, errors too; progress goes to stderr) and \
--config FILE (a TOML file with a section for each command, which options override).

Exit status: 0 done, 1 failed, 2 bad use, 130 interrupted (Ctrl-C or SIGTERM): what was paid for \
is finished first, and the last line says how to go on.
"""


def build_app() -> App:
    """The command-line program; importing a command waits until it is called."""
    app = App(
        name="userdp",
        help=_HELP.replace("\\\n", ""),
        help_epilogue="Try: userdp demo --out demo",
        version=__version__,
        print_error=False,
        exit_on_error=False,
        help_format="plaintext",
        result_action="return_value",
        suppress_keyboard_interrupt=False,  # by default it exits without a word
        default_parameter=Parameter(negative=()),
    )
    everywhere = Group("Every command", sort_key=len(COMMANDS))
    for option in ("--help", "--version"):
        app[option].group = everywhere
    for rank, (heading, commands) in enumerate(COMMANDS.items()):
        group = Group(heading, sort_key=rank)
        for place, (name, told) in enumerate(commands.items()):
            app.command(
                f"{__name__}:{name}", name=name, help=told.line, group=group, sort_key=place
            )
    return app


def names() -> tuple[str, ...]:
    """All commands."""
    return tuple(name for commands in COMMANDS.values() for name in commands)


def module_of(name: str) -> ModuleType:
    """Where a command is: its function, and ``in_words`` of what that answers."""
    room = "commands" if name in _ROOM else "cli"
    return import_module(f"userdp.{room}.{name}")


_ROOM = (
    "audit", "budget", "evaluate", "export", "forget", "generate", "members", "plan", "report",
    "score", "selftest", "settle", "stats", "verify",
)  # fmt: skip


def __getattr__(name: str) -> Command:
    """A command by its name: this is how the command-line library finds it when it is called."""
    told = {name: told for commands in COMMANDS.values() for name, told in commands.items()}
    if name not in told:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    function = getattr(module_of(name), name)
    return Command(
        name=name,
        help=told[name].line,
        help_epilogue=f"Try: userdp {name} {told[name].example}",
        default_command=for_a_line(function) if name in _ROOM else function,
    )
