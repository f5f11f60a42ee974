"""How each command is called: the table in which every command of the program has a row."""

from __future__ import annotations

from dataclasses import dataclass

from tests.secrets.outputs import OPERATORS_SCREEN, SCREEN, Output
from tests.secrets.planted import PEOPLE

SMALL = "--model new --set learning.layers=1 --set learning.width=16 --set learning.heads=2"
TUNED = SMALL.replace("--model ", "--set learning.model=")
ACCOUNT = "--sampling users --sampling-probability 0.01 --steps 9 --delta 1e-6"
PLANNED = "--budget 16 --steps 3 --epsilon 4 --norms NORMS --population 20000 --most-noise 1000"
MEASURED = (
    f"{PLANNED.replace('--norms NORMS', '--model bundled --norms-out norms.json')} "
    "--set measure.users=6 --set measure.max_group_size=2"
)
USER = PEOPLE[17].id


@dataclass(frozen=True, kw_only=True)
class Call:
    """One call.

    Args:
        line: what is typed; STORE, RUN, PLAN, INPUT stand for what the tests begin with.
        screen: what kind of output it prints.
        typed: what is typed on standard input.
        own: it changes its store or run, and gets one of its own.
        slow: it takes more than a second or two.
    """

    line: str
    screen: Output = SCREEN
    typed: str = ""
    own: bool = False
    slow: bool = False


def _operators(line: str, **more: bool | str) -> Call:
    return Call(line=line, screen=OPERATORS_SCREEN, **more)  # type: ignore[arg-type]


CALLS: dict[str, tuple[Call, ...]] = {
    "demo": (),  # of public text alone, as its docstring says
    "prepare": (
        _operators("prepare INPUT --user author --text message --out store --seq-len 16"),
        _operators("prepare INPUT --user author --text message --out store --json", slow=True),
    ),
    "store dedup": (
        _operators(
            "store dedup PUBLIC --private INPUT --set input.text=message "
            "--set input.user=author --out clean.jsonl",
            slow=True,
        ),
    ),
    "store stats": (
        _operators("store stats STORE --json"),
        # So much noise hits the exact number once in 2,000 times; of ε = 1 once in six.
        Call(line="store stats STORE --epsilon 0.003 --json", slow=True),
    ),
    "store score": (_operators("store score STORE --out scores.arrow --json", slow=True),),
    "account": (
        Call(line=f"account {ACCOUNT} --noise-multiplier 1 --json"),
        Call(line=f"account {ACCOUNT} --epsilon 4", slow=True),
    ),
    "plan": (
        Call(line=f"plan STORE {PLANNED} --out plan.json", slow=True),
        _operators(f"plan STORE {PLANNED} --out plan.json --json", slow=True),
        _operators(f"plan STORE {MEASURED} --json", slow=True),
    ),
    "train": (
        Call(line=f"train STORE --out run --plan PLAN {SMALL}", slow=True),
        Call(line=f"train STORE --out run --plan PLAN {SMALL} --json"),
        Call(
            line=f"train STORE --out run --set plain.steps=2 --set plain.batch_size=8 {SMALL}",
            own=True,
        ),
    ),
    "tune": (
        _operators(
            "tune STORE --out sweep --plan PLAN --tuning non-private "
            f"--learning-rate 0.001 0.003 {TUNED}",
            slow=True,
        ),
    ),
    "federate": (
        _operators(
            "federate INPUT --set input.user=author --set input.text=message --out federation "
            "--silos 2 --rounds 2 --runtime in-process --set model.seq_len=16 --model new "
            "--set model.layers=1 --set model.width=8 --set model.heads=2 --batch-size 5 "
            "--items-per-silo 2000 --subjects-per-silo 400",
            slow=True,
        ),
    ),
    "evaluate": (
        _operators("evaluate RUN --store STORE"),
        _operators("evaluate RUN --store STORE --json", slow=True),
        _operators("evaluate RUN --store STORE --personalize --most-users 3", slow=True),
        Call(line="evaluate RUN --store STORE --epsilon 4 --loss-bound 12 --json", slow=True),
    ),
    "generate": (
        Call(line="generate RUN --records 2 --max-tokens 4 --out synthetic.jsonl"),
        _operators(
            "generate RUN --records 2 --max-tokens 4 --out checked.jsonl --check STORE", slow=True
        ),
    ),
    "audit": (
        _operators("audit RUN --store STORE --no-repeat --most-users 20", slow=True),
        _operators("audit RUN --store STORE --no-repeat --most-users 20 --json", slow=True),
    ),
    "report": (
        Call(line="report RUN --out public.html --public --summary summary.html --json"),
        Call(line="report RUN --out report.html"),
    ),
    "export": (Call(line="export RUN --out shared"), Call(line="export RUN --out shared --json")),
    "verify": (
        Call(line="verify STORE"),
        Call(line="verify RUN --json"),
    ),
    "selftest": (Call(line="selftest --units 2", slow=True),),
    "store budget": (
        _operators("store budget STORE --plot budget.svg", slow=True),
        _operators("store budget STORE --json"),
    ),
    "store settle": (Call(line="store settle RUN --json", own=True, slow=True),),
    "store members": (
        _operators("store members STORE"),
        _operators("store members STORE --user - --statement statement.txt", typed=USER),
    ),
    "store forget": (
        _operators("store forget STORE --user - --statement statement.txt", typed=USER, own=True),
        _operators("store forget STORE --user - --json", typed=USER, own=True, slow=True),
    ),
}
"""Every command; without a call stand those that read nobody's private data."""
