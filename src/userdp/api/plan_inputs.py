"""What a plan takes its constants from: what is declared, the store's ledger, the norms."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from userdp.errors import UseError

if TYPE_CHECKING:
    from userdp.ledger.charges import Charge
    from userdp.ledger.history import History
    from userdp.planning.budget import Release
    from userdp.planning.norms import GradientNorms
    from userdp.planning.options import Declared, Goals
    from userdp.planning.planner import Request

_STATISTICS = {
    "population": ("users",),
    "population examples": ("examples",),
    "median examples per user": ("median", "p50"),
}


def gather(
    store: Path, norms: GradientNorms, declared: Declared, goals: Goals
) -> tuple[Request, tuple[str, ...]]:
    """What is asked of the planner, and notes for the operator.

    Each constant comes from its flag; else from the ledger's newest answer; else from the norms.

    Every DP answer that a run's claim will count is paid from the budget, whether or not a number
    is taken from it: nobody can say that it had no part in the choice.

    Raises:
        UseError: no population is known, or no δ can be fixed.
    """
    from userdp.ledger import StoreLedger
    from userdp.planning.budget import PrivacyBudget, delta_for
    from userdp.planning.planner import Request
    from userdp.planning.proposal import Constant, Origin

    history = StoreLedger(store).history()
    charges = list(history.charges.values())
    releases = _released(history)
    median = "median examples per user"
    values = {
        "population": declared.population,
        "population examples": declared.population_examples,
        median: declared.median_examples,
    }
    origin = Origin.DECLARED
    if declared.unsafe_exact_counts:
        given = [name for name, value in values.items() if value is not None]
        if given:
            raise UseError(
                f"--unsafe-exact-counts reads the private counts, and the {given[0]} is declared",
                hint="leave one of the two out",
            )
        StoreLedger(store).look("plan")
        values, origin = _exact(store), Origin.NON_PRIVATE
    constants: dict[str, Constant] = {}
    notes: list[str] = []
    for name, value in values.items():
        if value is not None:
            constants[name] = Constant(name=name, value=_count(name, value), origin=origin)
            continue
        charge = _newest(charges, _STATISTICS[name])
        if charge is None or charge.answer is None:
            continue
        users = constants.get("population")
        if name == "population examples" and charge.answer < ((users and users.value) or 1):
            notes.append(
                f"the DP answer for examples, {charge.answer}, is below the number of users: too "
                "noisy to use, so users times group size stands for it (its cost counts)"
            )
        else:
            constants[name] = Constant(
                name=name,
                value=_count(f"DP {name}", charge.answer),
                origin=Origin.DP_RELEASE,
                query_id=charge.run_id,
            )
    if norms.ledger_line not in (None, *history.charges):
        raise UseError(
            f"the norms name the ledger line {norms.ledger_line}, and the ledger of {store} has no "
            "such query: what they cost is unknown",
            hint="use the norms with the store that they were released from",
        )
    if median not in constants and norms.median_examples_per_user is not None:
        constants[median] = Constant(
            name=median,
            value=norms.median_examples_per_user,
            origin=Origin(str(norms.median_examples_source)),
            query_id=norms.ledger_line if norms.median_examples_source == "dp-release" else None,
        )
    if "population" not in constants:
        share = 0.05 if declared.query_share is None else declared.query_share
        raise UseError(
            "the plan needs a population: the sampling probability and every denominator are "
            "made of it, and the store's own count is private",
            hint="declare a nominal number of users with --population, or release it under DP "
            "first, as a share of the budget: userdp stats "
            f"{store} --epsilon {share * declared.epsilon!r} "  # rounded up it would not fit
            "--ask users --ask median",
        )
    delta = declared.delta
    if delta is None:
        count = declared.population_examples or declared.population
        if count is None:
            raise UseError(
                "delta is n^-1.1 only for a declared n: it must be fixed before any private look",
                hint="give --delta, or declare --population",
            )
        delta = delta_for(count)
    request = Request(
        **asdict(goals),
        privacy=PrivacyBudget(
            epsilon=declared.epsilon,
            delta=delta,
            releases=releases,
            query_share=declared.query_share,
        ),
        norms=norms,
        population=constants["population"],
        population_examples=constants.get("population examples"),
        median_examples=constants.get(median),
    )
    return request, tuple(notes)


def _count(name: str, value: int) -> int:
    if not 1 <= value <= 10**12:
        raise UseError(
            f"the {name} must be a whole number from 1 to 1000000000000, got {value!r}",
            hint="declare it with its flag, see `userdp plan --help`",
        )
    return value


def _newest(charges: list[Charge], names: tuple[str, ...]) -> Charge | None:
    """The last query for one of these statistics that has its answer."""
    answers = [c for c in charges if c.query_name in names and c.answer is not None]
    return answers[-1] if answers else None


def _released(history: History) -> tuple[Release, ...]:
    """The DP answers in a ledger that a run's claim would count, each at a price of its own."""
    from userdp.claims.inheritance import inherited_at
    from userdp.claims.parts import Query
    from userdp.planning.budget import Release

    return tuple(
        Release(
            name=part.name,
            query_id=part.id,
            epsilon=part.pure_epsilon,
            value=history.charges[part.id].answer,
        )
        for part in inherited_at(history, history.lines).parts
        if isinstance(part, Query) and part.id in history.charges
    )


def _exact(store: Path) -> dict[str, int | None]:
    """The private counts of the training split themselves."""
    import statistics

    from userdp.data.splits import Split
    from userdp.data.store import UserStore

    counts = UserStore.open(store).split(Split.TRAIN).counts
    if not len(counts):
        raise UseError(f"the store {store} has no training users")
    return {
        "population": len(counts),
        "population examples": int(counts.sum()),
        "median examples per user": int(statistics.median_low(counts.tolist())),
    }
