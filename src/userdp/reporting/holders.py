"""The ε of users who hold less than the cap, and what a plan's δ stands for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from userdp.plans.small_delta import DeltaSize, rule_of, size_of
from userdp.reporting.numbers import delta_text, epsilon_text, number_text
from userdp.reporting.run_facts import RunFacts
from userdp.reporting.table import MISSING, Table

_MOST_COLUMNS = 7


def fewer_examples(runs: Sequence[RunFacts]) -> Table | None:
    """ε by the number of examples that a user holds; None if no run here samples examples.

    Guarantee: an ELS mechanism with ``group_size`` k is the mechanism as a user with k examples
    sees it (Charles et al. 2024, Theorem 3 for a set A of k examples); each ε is an upper bound. It
    is "–" over a run's cap.
    """
    # Where one mechanism is all of the claim, it is the plan's.
    able = [run for run in runs if run.claim.mechanism and run.plan and run.plan.sampling.items > 1]
    if not able:
        return None
    caps = {run.plan.sampling.group_size for run in able if run.plan is not None}
    counts = sorted({*_counts(max(caps)), *caps})
    return Table(
        caption="ε at most, by the number of examples that a user holds",
        columns=("Examples of a user", *(f"{count:,}" for count in counts)),
        rows=[(run.name, *(_epsilon(run, held) for held in counts)) for run in able],
    )


def _counts(most: int) -> tuple[int, ...]:
    """1, 2, 4, … up to ``most``; for large caps in larger strides."""
    powers = [2**exponent for exponent in range(most.bit_length()) if 2**exponent <= most]
    stride = -(-len(powers) // _MOST_COLUMNS)
    return tuple(powers[::stride])


def _epsilon(run: RunFacts, held: int) -> str:
    plan = run.plan
    assert plan is not None
    if held > plan.sampling.items:
        return MISSING
    if held == plan.sampling.items:
        return epsilon_text(run.guarantee.epsilon)
    as_seen = replace(plan, sampling=replace(plan.sampling, group_size=held))
    return epsilon_text(as_seen.guarantee(delta=run.guarantee.delta).epsilon)


DELTAS = {
    "Run": "name",
    "δ": "delta",
    "n": "population",
    "1/n": "inverse",
    "n⁻¹·¹": "rule",
    "δ·n": "times",
    "Verdict": "verdict",
}
"""The columns of a table of `delta_facts`."""


def delta_facts(run: RunFacts) -> dict[str, str] | None:
    """How a run's δ compares with 1/n and n^-1.1; None where nothing is claimed.

    n is the plan's population: of users (ULS), or of examples (ELS), which every user has at least
    one of, so that users are no more than n.
    """
    if run.plan is None or not run.private:
        return None
    n, delta = run.plan.population, run.guarantee.delta
    by_user = run.plan.sampling.by_user
    size = size_of(delta, n)
    if size is DeltaSize.WITHIN_RULE:
        verdict = "δ is within the rule n⁻¹·¹, and so below 1/n."
    elif size is DeltaSize.ABOVE_RULE:
        verdict = "δ is below 1/n, but above the rule n⁻¹·¹."
    elif by_user:
        verdict = (
            "Careful: δ is not below 1/n: publishing all of one user, drawn by lot, would be "
            "within such a claim. Plan with a smaller δ."
        )
    else:
        verdict = (
            "Careful: δ is not below 1/n for n examples: see that it is well below 1 over the "
            "number of users too."
        )
    return {
        "name": run.name,
        "delta": delta_text(delta),
        "population": f"{n:,} {'users' if by_user else 'examples'}",
        "inverse": number_text(1 / n, 2),
        "rule": number_text(rule_of(n), 2),
        "times": delta_text(delta * n, 2),
        "verdict": verdict,
    }
