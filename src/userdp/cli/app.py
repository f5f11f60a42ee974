"""The program ``userdp``: its commands, each loaded when it is called, and its exit status."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

from cyclopts import App, CycloptsError, Parameter, UnknownCommandError
from cyclopts.config import Toml

from userdp.errors import UserdpError, UserdpWarning
from userdp.version import __version__
from userdp.waiting import PASSIVE_WAITING

_ACCOUNT = "--sampling users --sampling-probability 0.01 --steps 1000 --delta 1e-6"

# name: (one line of help, arguments that one can run)
_COMMANDS = {
    "prepare": ("Turn records into a user store.", "mail.jsonl.gz --out store"),
    "dedup": (
        "Remove from a public corpus what overlaps with private records (operator-only).",
        "public.jsonl.gz mail.jsonl.gz --out clean.jsonl.gz",
    ),
    "verify": (
        "Check a store, a run or a model against what was written, and recompute its claim.",
        "run",
    ),
    "stats": ("Count a store's users and examples (operator-only).", "store"),
    "members": (
        "Say who was in a store for what was charged, and what each was charged (operator-only).",
        "store",
    ),
    "forget": (
        "Erase a person from a store, and prove it by a scan.",
        "store --user ann@example.org",
    ),
    "account": (
        "Compute the (epsilon, delta) of a mechanism or of a ledger; reads no data.",
        f"{_ACCOUNT} --noise-multiplier 1",
    ),
    "calibrate": ("Find the least noise for a budget.", f"{_ACCOUNT} --target-epsilon 4"),
    "probe": (
        "Measure gradient norms for the planner (operator-only).",
        "store --out norms.json",
    ),
    "score": (
        "Score examples by perplexity, for train --selection (operator-only).",
        "store --out scores.arrow",
    ),
    "plan": (
        "Choose group size, cohort size and noise, and ELS or ULS, for a budget.",
        "store --budget 64 --steps 50 --epsilon 4 --norms norms.json --population 1000 "
        "--out plan.json",
    ),
    "train": (
        "Fine-tune a model with user-level differential privacy.",
        "store --out run --plan plan.json",
    ),
    "sweep": (
        "Train a grid of settings in parallel and choose one, at a claim that covers the choice.",
        "store --out sweep --plan plan.json --tuning composition --learning-rate 0.001 0.003",
    ),
    "evaluate": (
        "Measure loss and perplexity on held-out text (operator-only, or under DP).",
        "run --store store",
    ),
    "personalize": (
        "Measure what held-out users gain from a model of their own (operator-only).",
        "run --store store",
    ),
    "generate": (
        "Sample text or a synthetic data set from a run's model.",
        "run --records 1000 --out synthetic.jsonl",
    ),
    "audit": (
        "Attack a run and bound its epsilon from below (operator-only).",
        "run --store store",
    ),
    "selftest": (
        "Check every gradient engine on this machine, device and model.",
        "--model bundled",
    ),
    "report": (
        "Write one HTML page: the claim, its assumptions, the curves; and a model card.",
        "run --out report.html",
    ),
    "federate": (
        "Train across silos with privacy for subjects (Flower).",
        "digits --out federation",
    ),
    "reproduce": ("Compute a figure of the papers.", "ganesh-figure-1 --out figures"),
    "demo": ("Do all of it in small, on text that is on every machine.", "--out demo"),
}

_EVERYWHERE = (
    "Every command takes --json (one JSON object on stdout; progress goes to stderr) and --config "
    "FILE (a TOML file with a section per command, which flags override)."
)
_HELP = f"""Fine-tune language models with user-level differential privacy.

{_EVERYWHERE}

Exit status: 0 done, 1 failed, 2 bad use.
"""


def build_app() -> App:
    """The command-line program; importing a command waits until it is called."""
    app = App(
        name="userdp",
        help=_HELP,
        help_epilogue="Try: userdp demo --out demo",
        version=__version__,
        print_error=False,
        exit_on_error=False,
        help_format="plaintext",
        result_action="return_value",
        default_parameter=Parameter(negative=()),
    )
    for name, (help_text, example) in _COMMANDS.items():
        app.command(
            f"userdp.cli.{name}:{name}",
            name=name,
            help=help_text,
            help_epilogue=f"{_EVERYWHERE}\n\nTry: userdp {name} {example}",
        )
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit status."""
    from userdp.cli.output import Answer, print_error, show, show_warning

    try:
        app = build_app()
        tokens = _take_config(app, list(arguments))
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserdpWarning)
            warnings.showwarning = show_warning
            answer = app([token for token in tokens if token != "--json"])
            return show(answer, json="--json" in tokens) if isinstance(answer, Answer) else 0
    except UnknownCommandError:
        print_error(f"there is no command {arguments[0]!r}", "see `userdp --help`")
        return 2
    except CycloptsError as error:
        print_error(str(error), f"see `userdp {' '.join(arguments[:1])} --help`".replace("  ", " "))
        return 2
    except UserdpError as error:
        print_error(error.message, error.hint)
        return error.exit_status
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS):
            raise
        where = f" ({error.filename})" if error.filename else ""
        print_error(
            f"the machine refused: {error.strerror}{where}",
            "free some space, or choose another place with --out",
        )
        return 1
    except KeyboardInterrupt:
        print_error("interrupted")
        return 130


def main() -> None:
    """The console script."""
    _wait_passively()
    sys.exit(run(sys.argv[1:]))


def _wait_passively() -> None:
    """Have idle OpenMP threads sleep, unless the user chose how they wait.

    They spin by default, and on a busy machine they then take the cores from those that compute: a
    first step took 60 s in place of 3 s. OpenMP reads the variables once, when torch loads it.
    """
    if not PASSIVE_WAITING.keys() & os.environ.keys():
        os.environ.update(PASSIVE_WAITING)


def _take_config(app: App, tokens: list[str]) -> list[str]:
    """Take ``--config FILE`` off the line and let its values stand behind the flags."""
    from userdp.errors import UseError

    for position, token in enumerate(tokens):
        flag, _, path = token.partition("=")
        if flag != "--config":
            continue
        rest = tokens[position + 1 :]
        if not path:
            if not rest:
                raise UseError("--config needs a file")
            path, *rest = rest
        if not Path(path).is_file():
            raise UseError(f"--config {path}: there is no such file")
        app.config = Toml(path, must_exist=True, search_parents=False)
        return tokens[:position] + rest
    return tokens


if __name__ == "__main__":
    main()
