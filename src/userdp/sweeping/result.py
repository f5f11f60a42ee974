"""What came of a sweep, and what of it may be told to whom."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from userdp.claims import claim
from userdp.data.store import UserStore
from userdp.sweeping.request import SweepRequest, TuningMode
from userdp.sweeping.scores import Score


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepResult:
    """What came of a sweep.

    Args:
        request: as it was kept.
        winner: the folder that may be handed on; None where a private selection drew no candidate.
        score: the winner's.
        settings: the winner's.
        trials: settings and score of each, best first; empty for a private selection, of which
            nothing but the winner may be told.
        inside_the_noise: trials that may as well be better than the winner, by number.
    """

    request: SweepRequest
    winner: Path | None = None
    score: Score | None = None
    settings: dict[str, Any] | None = None
    trials: tuple[dict[str, Any], ...] = ()
    inside_the_noise: tuple[int, ...] = ()


def describe(result: SweepResult, store: UserStore) -> dict[str, Any]:
    """The claim of the winner, recomputed from its ledger, and what else may be told to whom."""
    request = result.request
    claimed = None if result.winner is None else claim(result.winner)
    return {
        "tuning": str(request.mode),
        "chosen_by": request.in_words,
        "operator_only": request.mode is TuningMode.NON_PRIVATE,
        "split": str(request.split),
        "candidates": len(request.candidates),
        "score_epsilon": None if request.tuning is None else request.tuning.score_epsilon,
        **({} if claimed is None else claimed.to_dict()),
        "winner": None if result.winner is None else str(result.winner),
        "settings": result.settings,
        "score": None if result.score is None else result.score.value,
        "score_error": None if result.score is None else result.score.error,
        "inside_the_noise": list(result.inside_the_noise),
        "trials": list(result.trials),
        "store_epsilon": claim(store.path).guarantee.epsilon,
    }
