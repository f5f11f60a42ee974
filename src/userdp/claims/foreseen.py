"""What the model of a run will claim that is charged next: a plan's total, before it is spent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from userdp.claims.claims import compose
from userdp.claims.inheritance import inherited_at
from userdp.claims.lineage import Lineage
from userdp.claims.payers import parts_of
from userdp.claims.weights import description_of
from userdp.ledger.charges import Charge
from userdp.ledger.history import History
from userdp.ledger.series import room_for
from userdp.plans import Plan
from userdp.vocabulary import Guarantee, delta_up, round_up


def foreseen(
    history: History, plan: Plan, *, base: Lineage | str | Path | None = None, at: int | None = None
) -> dict[str, Any]:
    """ε and δ of the claim of a run of ``plan``, as things stand, and of each of its parts.

    Guarantee: a run that is charged before anything else is, and begins from ``base``, claims
    exactly this.

    Args:
        history: of the ledger that it is to be charged in.
        plan: of the run.
        base: what the model that it begins from descends from, or its folder, where that is known.
        at: the line at which the run's constants were fixed; by default the next one.

    Returns:
        Plain values; ε is None where the parts do not add up, as over several adjacencies.
    """
    if not isinstance(base, Lineage):
        described = None if base is None or not Path(base).is_dir() else description_of(Path(base))
        base = Lineage() if described is None else described.lineage
    lineage = base + inherited_at(history, history.lines if at is None else at)
    series = room_for(history, plan)
    own = Charge(
        run_id="the next run",
        at=history.lines,
        plan=plan,
        series=None if series is None else series.id,
    )
    lineage = lineage.among(history.id, history.ids)
    lineage += Lineage(parts=tuple(parts_of(history, [own])), within=history.within)
    return {
        **_plain(compose(lineage)),
        "parts": [{"what": part.in_words, **_plain(part.guarantee())} for part in lineage.parts],
    }


def foreseen_in_words(claim: Mapping[str, Any]) -> str:
    """Each part of a claim to come, and what they come to."""
    parts = ", ".join(f"{_up(part)} for {part['what']}" for part in claim["parts"])
    return f"{parts}: {_up(claim)} in all, delta {delta_up(claim['delta'], 3)}, per user"


def _plain(price: Guarantee) -> dict[str, Any]:
    epsilon = price.epsilon if math.isfinite(price.epsilon) else None
    return {"epsilon": epsilon, "delta": price.delta}


def _up(price: Mapping[str, Any]) -> str:
    return "no epsilon" if price["epsilon"] is None else f"epsilon {round_up(price['epsilon'])}"
