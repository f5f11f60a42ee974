"""What a claimed ε rests on, in words, each assumption graded by what breaks if it is false."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from userdp.noise.gaussian import FLOATING_POINT_ASSUMPTION, NoiseSampler
from userdp.reporting.markdown import visible
from userdp.reporting.run_facts import RunFacts


class Grade(StrEnum):
    """How much hangs on an assumption.

    ``CRITICAL``: false means that the claimed ε does not hold; somebody must have made sure.
    ``THEORETICAL``: a known gap between proof and machine; no way to use it is known to us.
    ``NEGLIGIBLE``: bounded far below the digits shown, or without bearing on ε.
    """

    CRITICAL = "critical"
    THEORETICAL = "theoretical"
    NEGLIGIBLE = "negligible"


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumption:
    """One thing that has to be true.

    Args:
        key: names it, for links and tests.
        title: in a few words.
        grade: how much hangs on it.
        statement: what has to be true.
        otherwise: what follows if it is not.
        ensured: who sees to it, and how.
    """

    key: str
    title: str
    grade: Grade
    statement: str
    otherwise: str
    ensured: str


def assumptions_of(runs: Sequence[RunFacts]) -> tuple[Assumption, ...]:
    """The assumptions of these runs' claims, the most critical first."""
    rests = [_assumption(key) for key, words in _texts().items() if words.get("always")]
    rests += _noise(runs)
    samplings = [run.plan.sampling for run in runs if run.plan is not None]
    assumed = {one.key: one for sampling in samplings for one in sampling.words.assumes}
    rests += [Assumption(grade=Grade.CRITICAL, **asdict(one)) for one in assumed.values()]
    holds = {
        "cap": not all(sampling.by_user for sampling in samplings),
        "public-scores": any(
            run.settings.get("selection", "").endswith("perplexity") for run in runs
        ),
        "several-runs": len(runs) > 1,
    }
    rests += [_assumption(key) for key, so in holds.items() if so]
    rests += [_assumption("owners", one) for one in sorted({r.owners for r in runs if r.owners})]
    rests += _conditions(runs)
    order = list(Grade)
    return tuple(sorted(rests, key=lambda assumption: order.index(assumption.grade)))


def _assumption(key: str, told: str = "") -> Assumption:
    """The assumption of this name in the file of words; ``told`` is filled in.

    What is told may come from files that others wrote: it is put on one line, and its backticks,
    which mean code in sentences of ours, become quotes.
    """
    words = _texts()[key]
    said = {"told": visible(told).replace("`", "'")}
    texts = {
        name: " ".join(words[name].split()).format(**said)
        for name in ("title", "statement", "otherwise", "ensured")
    }
    return Assumption(key=key, grade=Grade(words["grade"]), **texts)


@cache
def _texts() -> dict[str, dict[str, Any]]:
    path = Path(__file__).parent / "templates" / "assumptions.toml"
    return tomllib.loads(path.read_text(encoding="utf-8"))


def _noise(runs: Sequence[RunFacts]) -> list[Assumption]:
    """What the noise of these runs rests on, by what their ledgers say drew it."""
    drawn = {sampler for run in runs for sampler in run.noise_samplers or ()}
    if any(run.plan is not None and run.plan.clip.adaptation is not None for run in runs) and drawn:
        drawn.add(NoiseSampler.HOST)  # draws the count of adaptive clipping everywhere
    samplers = [sampler for sampler in NoiseSampler if sampler in drawn]
    by = "; and ".join(sampler.in_words for sampler in samplers)
    words = f"The noise was drawn {by}. " if samplers else ""
    if any(run.noise_samplers is None for run in runs):
        words += (
            "The ledger of a run here does not say what drew its noise; nothing is claimed for it. "
        )
    seeds = "; ".join(sampler.seeding for sampler in samplers)
    blocks = f"; for each block of noise and each of its two draws {seeds}" if seeds else ""
    return [
        _assumption("floating-point", words + FLOATING_POINT_ASSUMPTION),
        _assumption("randomness", blocks),
    ]


def _conditions(runs: Sequence[RunFacts]) -> list[Assumption]:
    """The conditions of these claims, one assumption for each kind."""
    conditions = sorted({one for run in runs if run.private for one in run.claim.conditions})
    told: dict[str, list[str]] = {}
    for condition in conditions:
        told.setdefault(condition.kind, []).append(condition.in_words)
    return [
        _assumption(kind, f"{words[:1].upper()}{words[1:]}.")
        for kind, clauses in told.items()
        for words in ["; and ".join(clauses)]
    ]
