"""A store's ledger written by words, so that a test is a table of stories and what they come to.

``look stats; run one logged; ask q`` is an exact look, a run that keeps a log, and an answer.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from tests import ledgers
from tests.ledgers import query, reserve, settle
from tests.plans import els_plan, uls_plan
from userdp.accounting.filters import RenyiFilter
from userdp.accounting.private_selection import TruncatedNegativeBinomial
from userdp.claims import claim
from userdp.claims.ledger_lineage import inherited
from userdp.ledger import History, StoreLedger
from userdp.ledger.lines import BeginTuning, OpenBudget, Release
from userdp.plans import PrivateSelection
from userdp.plans.provenance import Origin, Provenance

PLAN = uls_plan()
MEASURED = replace(
    PLAN, origins={"steps": Origin(source=Provenance.NON_PRIVATE, statistic="gradient norms")}
)
PRICE = PLAN.guarantee()
FILTER = RenyiFilter.opened(epsilon=8.0, delta=1e-5)
LAW = TruncatedNegativeBinomial.of_mean(5, eta=0.0)
SELECTION = PrivateSelection(plans=(PLAN,), score_epsilon=0.1, repetitions=LAW)


def run(ledger: StoreLedger, name: str, *words: str) -> None:
    """``run NAME``, and any of ``logged``, ``steered``, ``measured``, ``of CONSTANTS``.

    ``measured``: its plan was made of exact numbers.
    """
    named = dict(pairwise(words))
    facts = {word: word in words for word in ("logged", "steered")}
    constants = named.get("of", f"constants of {name}")
    reserve(ledger, name, MEASURED if "measured" in words else PLAN, constants=constants, **facts)


def select(ledger: StoreLedger, *slots: str, selection: PrivateSelection = SELECTION) -> History:
    """Charge a private selection, which draws these slots if it has drawn none."""
    drawn = dict.fromkeys(slots, "constants")
    return ledgers.select(ledger, "s", selection, constants=("constants",), slots=drawn)


VERBS = {
    "run": run,
    "plain": lambda ledger: reserve(ledger, "plain", None),
    "graph": lambda ledger: reserve(ledger, "graph", els_plan(fixed_graph=True)),
    "look": StoreLedger.look,
    "ask": lambda ledger, name="q", epsilon=0.25: query(
        ledger, name, name="users", pure_epsilon=float(epsilon)
    ),
    "settle": settle,
    "release": lambda ledger, name: ledger.append(Release(run_id=name, weights="w", lineage={})),
    "tuning": lambda ledger, *all_: ledger.append(BeginTuning(run_id="t", constants=all_)),
    "select": lambda ledger, *words: select(
        ledger, selection=replace(SELECTION, plans=(MEASURED,)) if words else SELECTION
    ),
    "filter": lambda ledger: ledger.append(OpenBudget(run_id="budget", filter=FILTER)),
}


def write(ledger: StoreLedger, story: str) -> None:
    """Write what a story says."""
    for step in story.split("; "):
        verb, *words = step.split()
        VERBS[verb](ledger, *words)


def told(ledger: StoreLedger) -> dict[str, str]:
    """What the store's claim rests on; each kind once."""
    conditions = claim(ledger.path.parent).conditions
    kinds = {str(one.kind): one.told for one in conditions}
    assert len(kinds) == len(conditions)
    return kinds


def parts(ledger: StoreLedger) -> str:
    """The ids of what the store's claim adds up."""
    return " ".join(part.id for part in claim(ledger.path.parent).parts)


def inherits(ledger: StoreLedger) -> tuple[str, str]:
    """What the last run descends from besides its own steps: the ids of parts, and the looks."""
    *_, last = ledger.history().charges.values()
    lineage = inherited(ledger.history(), last.run_id)
    ids = " ".join(part.id for part in lineage.parts)
    return ids, "; ".join(one.told for one in lineage.conditions)
