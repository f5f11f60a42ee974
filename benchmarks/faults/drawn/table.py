"""The score of the drawn mutants, and its section of a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scipy.stats import binomtest

from benchmarks.faults.drawn.draw import SEED
from benchmarks.faults.drawn.positions import Mutant
from benchmarks.faults.drawn.survivors import Kind, Reason
from benchmarks.faults.drawn.trials import LIMIT, Verdict

BEGIN, END = "<!-- drawn mutants: begin -->", "<!-- drawn mutants: end -->"
Parts = Mapping[str, Sequence[Mutant]]
Rows = Mapping[str, Mapping[str, Any]]
_EQUAL = (Kind.SAME, Kind.AS_RIGHT, Kind.WORDS)


def interval(killed: int, tried: int) -> str:
    """The 95% interval of Clopper and Pearson, in per cent.

    >>> interval(540, 600)
    '87.3% to 92.3%'
    """
    if not tried:
        return "none"
    bounds = binomtest(killed, tried).proportion_ci(method="exact")
    return f"{100 * bounds.low:.1f}% to {100 * bounds.high:.1f}%"


def table(parts: Parts, rows: Rows) -> str:
    """One line for each part of the source."""
    lines = [
        "| part | tried | killed | too long | survived | score | 95% interval |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]
    everything = [one for mutants in parts.values() for one in mutants]
    for name, mutants in [*parts.items(), ("**all**", everything)]:
        found = [rows[one.name]["verdict"] for one in mutants if one.name in rows]
        killed = found.count(Verdict.KILLED)
        score = f"{100 * killed / len(found):.1f}%" if found else ""
        numbers = (len(found), killed, found.count("too long"), found.count("survived"), score)
        cells = " | ".join(str(number) for number in numbers)
        lines.append(f"| {name} | {cells} | {interval(killed, len(found))} |")
    return "\n".join(lines)


def summary(parts: Parts, rows: Rows, reasons: Mapping[str, Reason]) -> str:
    """The score in words: as it is, and without those that change nothing."""
    names = [one.name for mutants in parts.values() for one in mutants]
    tried = [name for name in names if name in rows]
    killed = [name for name in tried if rows[name]["verdict"] == Verdict.KILLED]
    left = [name for name in tried if rows[name]["verdict"] != Verdict.KILLED]
    equal = [name for name in left if name in reasons and reasons[name].kind in _EQUAL]
    rest = len(tried) - len(equal)
    text = (
        f"{len(killed)} of {len(tried)} mutants killed (95% interval "
        f"{interval(len(killed), len(tried))}); {len(equal)} of the others change nothing that "
        f"anybody relies on, and without these it is {len(killed)} of {rest} "
        f"({interval(len(killed), rest)})"
    )
    missing = len(names) - len(tried)
    return f"{text}; {missing} not tried yet" if missing else text


def survivors(parts: Parts, rows: Rows, reasons: Mapping[str, Reason]) -> str:
    """One line for each mutant that no test failed for."""
    lines = [
        "| where | what stands there | what was put there | why it may stay |",
        "|---|---|---|---|",
    ]
    for one in _left(parts, rows):
        reason = reasons.get(one.name)
        told = f"*{reason.kind}*: {reason.why}" if reason is not None else "**not looked at yet**"
        if rows[one.name]["verdict"] == Verdict.TOO_LONG:
            told = f"the tests do not end; {told}" if reason is not None else "the tests do not end"
        place = f"`{one.file}:{rows[one.name]['lines'][0]}`"
        lines.append(f"| {place} | {_code(one.old)} | {_code(one.new)} | {told} |")
    return "\n".join(lines)


def section(
    parts: Parts, rows: Rows, reasons: Mapping[str, Reason], *, date: str, cores: int
) -> str:
    """The section of the page, between its marks."""
    seconds = sum(rows[one.name]["seconds"] for one in _all(parts) if one.name in rows)
    return f"""{BEGIN}

## Drawn mutants

A tool of mutation (cosmic-ray, with two operators of our own: a call left out, an extreme
exchanged) lists every small change of the code that privacy rests on. What means nothing is left
out by rule: annotations, the words of errors, options of decorators, and constants that only tune
(`benchmarks/faults/drawn/tuning.toml`, each with its reason). A committed seed (`{SEED}`) then
draws the mutants, so many of each part. Each is planted alone in a copy of the source, and those
fast tests run that run its line, the cheapest of the same part first, up to {LIMIT:.0f} s of
processor time. *Killed*: a test fails. *Too long*: none fails, and they do not end. What survived
either got a test, and was tried again, or is listed below with the reason why it may stay.

**{summary(parts, rows, reasons)}.** `make mutants-drawn`, {date}, {cores} cores, {seconds / 60:.0f}
minutes of processor time.

{table(parts, rows)}

*Same*: no input shows a difference, or only one in the time that something takes. *As right*: the
results differ, and both hold (a bracket that is wider, another line that is as proven). *Slack*: an
allowance for rounding is smaller than what was proven, and still larger than the error everywhere
that tests look; such a mutant counts against the score. *Words*: what a person reads differs, and
says the same. *Open*: a test is missing.

{survivors(parts, rows, reasons)}

{END}"""


def _all(parts: Parts) -> Iterable[Mutant]:
    return (one for mutants in parts.values() for one in mutants)


def _left(parts: Parts, rows: Rows) -> list[Mutant]:
    tried = (one for one in _all(parts) if one.name in rows)
    left = (one for one in tried if rows[one.name]["verdict"] != Verdict.KILLED)
    return sorted(left, key=lambda one: (one.file, one.lines))


def _code(text: str) -> str:
    escaped = text.replace("|", "\\|")
    return f"`` {escaped} ``" if "`" in escaped else f"`{escaped}`"
