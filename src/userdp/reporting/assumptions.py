"""What a claimed ε rests on: the assumptions of ``templates/`` that apply to some runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from userdp.noise.gaussian import FLOATING_POINT_ASSUMPTION, NoiseSampler
from userdp.reporting.facts import Facts
from userdp.reporting.rendering import visible, words


class Grade(StrEnum):
    """How much hangs on an assumption.

    ``CRITICAL``: false means that the claimed ε does not hold; somebody must have made sure.
    ``THEORETICAL``: a known gap between proof and machine; no way to use it is known to us.
    ``NEGLIGIBLE``: bounded far below the digits shown.
    """

    CRITICAL = "critical"
    THEORETICAL = "theoretical"
    NEGLIGIBLE = "negligible"


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumption:
    """One thing that has to be true. The conditions of a claim stand in its headline instead.

    Args:
        key: names it, for tests.
        title: in a few words.
        grade: how much hangs on it.
        statement: what has to be true, and what follows if it is not.
        ensured: who sees to it, and how.
    """

    key: str
    title: str
    grade: Grade
    statement: str
    ensured: str


def assumptions_of(runs: Sequence[Facts]) -> tuple[Assumption, ...]:
    """The assumptions of these runs' claims, those that matter most first."""
    samplings = [run.plan.sampling for run in runs if run.plan is not None]
    drawn = {sampler for run in runs for sampler in run.noise_samplers or ()}
    if drawn and any(run.plan and run.plan.clip.adaptation is not None for run in runs):
        drawn.add(NoiseSampler.HOST)  # draws the count of adaptive clipping everywhere
    samplers = [sampler for sampler in NoiseSampler if sampler in drawn]
    by = "; and ".join(sampler.in_words for sampler in samplers)
    seeds = "; ".join(sampler.seeding for sampler in samplers)
    owners = "; ".join(sorted({run.owners for run in runs if run.owners}))
    told = {
        # From files that others wrote: its backticks, which mean code here, become quotes.
        "owners": visible(owners).replace("`", "'"),
        "floating-point": (f"The noise was drawn {by}. " if by else "") + FLOATING_POINT_ASSUMPTION,
        "randomness": f"; for each block of noise and each of its two draws {seeds}" if by else "",
    }
    applies = {
        "owners": bool(owners),
        "scored": any(run.settings.get("selection", "").endswith("perplexity") for run in runs),
        "capped": not all(sampling.by_user for sampling in samplings),
    }
    of_samplings = {one.key: one for sampling in samplings for one in sampling.words.assumes}
    rests = [
        Assumption(
            key=one.key,
            title=one.title,
            grade=Grade.CRITICAL,
            statement=f"{one.statement} {one.otherwise}",
            ensured=one.ensured,
        )
        for one in of_samplings.values()
    ]
    return (
        *rests,
        *(
            Assumption(
                key=key,
                title=one["title"],
                grade=Grade(one["grade"]),
                statement=one["statement"].format(told=told.get(key, "")),
                ensured=one["ensured"].format(told=told.get(key, "")),
            )
            for key, one in words()["assumption"].items()
            if applies.get(one.get("when", ""), True)
        ),
    )
