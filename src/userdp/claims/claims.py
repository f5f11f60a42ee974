"""From ledgers to the claim: the one function that every printer of a claim asks."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from userdp.accounting.accountants import Accountant, by_dp_accounting
from userdp.accounting.mechanisms import Mixture
from userdp.accounting.rdp import has_curve
from userdp.claims.claim_sentences import Claim, priced
from userdp.claims.ledger_lineage import (
    bases_of,
    chosen_among,
    lineage_between,
    meanwhile,
    parts_of,
    payer_of,
    run_lineage,
    store_conditions,
    store_of,
)
from userdp.claims.lineage import Lineage, looks_in_one, of_parts, of_plan
from userdp.claims.released_files import require_released_files
from userdp.core.errors import FailureError, UseError
from userdp.core.vocabulary import Guarantee, delta_up, require_delta
from userdp.ledger import History, RunRecord, StoreLedger, journal
from userdp.ledger.charged_parts import Choice, Query, Steps, of_run
from userdp.ledger.lines import ReleaseLoss, Store
from userdp.ledger.run_folder import LEDGER
from userdp.ledger.store_history import fold
from userdp.ledger.store_ledger import PLACE
from userdp.plans import FixedGrid, Plan


def claim(of: str | os.PathLike[str] | RunRecord | History, *, delta: float | None = None) -> Claim:
    """The claim of a run or a store: of its folder, its ledger, or what was read of that.

    Guarantee: everything that the run released, or that was released of the store, satisfies the
    claim under its conditions. A run claims its whole plan, whether or not all of it ran: when it
    stopped may have been chosen by what it released. Besides, it claims all that its constants and
    its base model descend from. A run whose sampling or noise had a known seed claims nothing. The
    winner of a tuning claims what the tuning costs, whole; a trial of a private selection claims
    nothing. Where a run's folder holds a model, it is the one that the run released.

    Args:
        of: a run or a store, its folder or its ledger; or what was read of one of them.
        delta: of the whole, shared evenly by the parts that have one; each part's own by default.

    Raises:
        UseError: there is no ledger there, it was edited, or the folder of a run holds another
            model than the run released.
    """
    if delta is not None:
        require_delta(delta)
    read = of if isinstance(of, RunRecord | History) else _read(Path(of))
    if isinstance(read, History):
        if not read.lines:
            raise UseError(f"there is no ledger at {of}, or an empty one: nothing was charged")
        return store_claim(read, delta)
    require_released_files(read)
    return run_claim(read, delta)


def _read(of: Path) -> RunRecord | History:
    folder = of if of.is_dir() else of.parent
    if (folder / PLACE).exists():  # a store's: the ledger is held against what is kept beside it
        return StoreLedger(folder).history()
    path = of / LEDGER if of.is_dir() else of
    read = journal.read(path)
    if read.lines and not isinstance(read.lines[0], Store):
        return RunRecord.of_lines(path, read)
    return fold(read.lines, path)  # of a ledger that stores share: no store is named


def run_claim(run: RunRecord, delta: float | None = None) -> Claim:
    """The claim of a run by its ledger and its people's store, whatever its folder holds."""
    store, plan, steps = store_of(run), run.plan, run.attempts
    lineage = run_lineage(run, chosen_among(run, store)) + meanwhile(run, store)
    own = plan if run.begin.payer is None else None  # else the steps have no price by themselves
    printed = tuple(
        Query(id="+".join(line.query_ids), name=f"loss on {line.split}", pure_epsilon=line.epsilon)
        for line in run.of(ReleaseLoss)
    )
    return Claim(
        guarantee=lineage.guarantee(delta=delta),
        lineage=lineage,
        subject="run",
        steps=steps,
        complete=plan is not None and steps == plan.steps,
        so_far=own.guarantee(steps, delta=delta) if own and steps < own.steps else None,
        plan=plan,
        printed=printed,
        together=(lineage + of_parts(printed)).guarantee(delta=delta) if printed else None,
    )


def store_claim(history: History, delta: float | None = None) -> Claim:
    """What these people paid: the charges of the ledger, and what its runs' base models paid.

    It rests on all that the claims of what was charged rest on (`store_conditions`).

    A run over this store releases weights that still hold what its base model had learned, and
    these people may have been in that.
    """
    charges = list(history.charges.values())
    single = charges[0] if len(charges) == 1 else None
    lineage = of_parts(parts_of(history, charges), *store_conditions(history))
    # Of a tuning each trial and each score was charged here: its winner's price is in them already.
    here = {one.constants for one in charges}
    tunings = {name for name, (_, one) in history.tunings.items() if here & {*one.constants}}
    tunings -= history.charges.keys()
    for base in bases_of(history, charges):
        unpaid = tuple(part for part in base.parts if part.id not in tunings)
        lineage += replace(base, parts=unpaid)
    lineage = replace(lineage, conditions=looks_in_one(lineage.conditions))
    return Claim(
        guarantee=lineage.guarantee(delta=delta),
        lineage=lineage,
        subject="store",
        steps=sum(one.plan.steps for one in charges if one.plan),
        complete=all(map(history.is_final, charges)),
        plan=single.plan if single else None,
    )


def model_claim(lineage: Lineage) -> Claim:
    """The claim of a model by what its folder says that it descends from."""
    return Claim(
        guarantee=lineage.guarantee(),
        lineage=lineage,
        subject="model",
        steps=sum(part.plan.steps for part in lineage.parts if isinstance(part, Steps)),
        complete=True,
    )


def foreseen(history: History, plan: Plan, *, base: Lineage | None = None) -> dict[str, Any]:
    """ε and δ of the claim of a run of ``plan``, as things stand, and of each of its parts.

    Guarantee: a run that is charged before anything else is, and begins from ``base``, claims
    exactly this, under these conditions at least.

    Args:
        history: of the ledger that it is to be charged in.
        plan: of the run.
        base: what the model that it begins from descends from (`userdp.claims.weights.ancestry`).

    Returns:
        Plain values; ε is None where the parts do not add up, as over several adjacencies. With
        ``conditions``, in words: those that are known by now.
    """
    lineage = (base or Lineage()) + lineage_between(history)
    lineage += of_parts([payer_of(history, of_run("the next run", plan))], *of_plan(plan))
    whole = lineage.guarantee()
    told = [{"epsilon": whole.epsilon, "delta": whole.delta}, *map(priced, lineage.parts)]
    for one in told:
        if math.isinf(one["epsilon"]):
            one["epsilon"] = None  # the answer is kept in a file, and JSON has no infinity
    conditions = [one.in_words for one in lineage.conditions]
    return {**told[0], "parts": told[1:], "conditions": conditions}


def second_opinion(claim: Claim, *, by: Accountant = Accountant.RDP) -> Guarantee | None:
    """The same claim by another accountant; None where only one accountant here knows its price.

    Guarantee: what ``claim`` covers satisfies the returned guarantee, under the same conditions.
    Nothing of it was computed by the contour accountant. It is at the δ of the claim, part by part.

    It knows the steps of Poisson samplings (ULS and ELS, single runs and all runs of a fixed grid)
    and, beside them, pure queries. It knows neither batches of a fixed size, nor a private
    selection, which is priced by Rényi DP in the first place, nor what was computed elsewhere.

    Args:
        claim: with a finite ε, each part at its own δ.
        by: Rényi DP, which is quick and looser; or the privacy loss distributions of the library
            dp-accounting, which take seconds and agree to three digits. None where that library is
            not installed.

    Raises:
        FailureError: the two contradict each other: this upper bound of the ε of some steps is
            smaller than the first accountant's certified *lower* bound of the same ε.
    """
    plans = {plan for part in claim.parts for plan in part.plans}
    known = all(
        isinstance(part, Steps | Query)
        or (isinstance(part, Choice) and isinstance(part.tuning, FixedGrid))
        for part in claim.parts
    )
    if not (plans and known and claim.finite and all(has_curve(plan.mechanism) for plan in plans)):
        return None
    try:
        prices = {plan: _second_price(plan, by) for plan in plans}
    except (UseError, FailureError):  # not installed, or no room for so little noise
        return None
    for plan, price in prices.items():
        _refuse_contradiction(plan, price)
    second = claim.lineage.guarantee(price=lambda plan, delta: prices[plan])
    return second if math.isfinite(second.epsilon) else None


@lru_cache(maxsize=64)  # page, card and answer of one command tell the same claim
def _second_price(plan: Plan, by: Accountant) -> Guarantee:
    if by is not Accountant.DP_ACCOUNTING:
        return plan.guarantee(accountant=by)
    first, mechanism = plan.guarantee(), plan.mechanism
    assert isinstance(mechanism, Mixture)
    epsilon = by_dp_accounting(mechanism, first.delta, grid=1e-3).upper
    return replace(first, epsilon=epsilon, accountant=str(by))


def _refuse_contradiction(plan: Plan, second: Guarantee) -> None:
    if plan.accountant is not Accountant.CONTOUR or not math.isfinite(second.epsilon):
        return
    # The noise as it is drawn only costs more than the ideal noise, whose lower bound this is.
    first = plan.mechanism.epsilon(second.delta)
    if second.epsilon < first.lower:
        raise FailureError(
            f"two accountants contradict each other about {plan.steps} steps at delta = "
            f"{delta_up(second.delta)}: epsilon is at least {first.lower!r} by {first.accountant}, "
            f"and at most {second.epsilon!r} by {second.accountant}. One of them is wrong, so no "
            "epsilon can be relied on",
            hint="report it with the plan: every number of it is public",
        )
