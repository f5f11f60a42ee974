"""What the winner of a sweep descends from besides its own run and the price of choosing it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from userdp.claims.claims import compose
from userdp.claims.conditions import Condition, ConditionKind
from userdp.claims.inheritance import inherited_at
from userdp.claims.lineage import Lineage, lineage_from, of_parts
from userdp.claims.payers import parts_of
from userdp.data.store import UserStore
from userdp.errors import UseError
from userdp.ledger import StoreLedger
from userdp.sweeping.folder import SweepFolder
from userdp.sweeping.request import SweepRequest, TuningMode
from userdp.training.origin import lineage_of_named, lineage_of_text


def inherited_by(
    winner: int,
    *,
    store: UserStore,
    folder: SweepFolder,
    request: SweepRequest,
    sweep_id: str,
    numbers: Sequence[int],
) -> Lineage:
    """What the whole grid descends from: it was fixed when the sweep began.

    Besides, what each trial began from, as it was known then; and what no candidate's price
    holds: further charges of trials, and trials that were begun and thrown away.

    Args:
        winner: the number of the trial that was chosen.
        store: that the sweep was charged in.
        folder: of the sweep.
        request: what the sweep was asked for.
        sweep_id: the id that the store's ledger knows it by.
        numbers: of all trials.
    """
    history = StoreLedger(store.path).history()
    begun, constants = history.sweeps[sweep_id]
    lineage = inherited_at(history, begun) + _base_of(request, store)
    runs = {number: folder.run(number).run_id for number in numbers}
    ours = [
        charge
        for charge in history.charges.values()
        if charge.at > begun and charge.constants in constants
    ]
    bases = [charge.base for charge in ours] + [history.bases.get(one) for one in runs.values()]
    for base in bases:
        if base:
            lineage += lineage_from(base, what="the base of a trial")
    unpaid = [charge for charge in ours if charge.run_id not in runs.values()]
    if request.mode is TuningMode.NON_PRIVATE:  # the others are in its condition
        unpaid = [charge for charge in unpaid if charge.again == runs[winner]]
    lineage += of_parts(parts_of(history, unpaid))
    lineage = lineage.among(history.id, history.ids)
    if request.mode is TuningMode.NON_PRIVATE:
        looked = Condition(kind=ConditionKind.LOOKS, told="sweep")
        lineage += Lineage(conditions=(looked,))
    return lineage + lineage_of_text(store)


def require_priced_base(request: SweepRequest, store: UserStore) -> None:
    """`UseError` where no winner could claim anything: before anything is trained."""
    base = _base_of(request, store)
    if request.tuning is not None and base.parts and math.isinf(compose(base).epsilon):
        raise UseError(
            "nothing is claimed of the model that all trials would begin from, so that nothing "
            "could be claimed of the winner",
            hint="begin from another model, or tune without a claim: --tuning non-private",
        )


def _base_of(request: SweepRequest, store: UserStore) -> Lineage:
    """What the model descends from that all candidates begin from."""
    return lineage_of_named(request.candidates[0].config.model, store)
