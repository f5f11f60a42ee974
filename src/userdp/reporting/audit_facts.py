"""What attacks on a run showed, from the file that `userdp audit` leaves. Operator-only."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from userdp.errors import UseError

AUDIT = Path("audit") / "audit.json"
"""In a run's folder; mode 0600."""

CANARIES = "canaries in one more run (Steinke et al. 2023)"
STEPS = "noise and draws of its steps, watched"


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditFacts:
    """A lower bound on a run's ε.

    Args:
        method: how it was found.
        epsilon_lower: 0 where nothing was shown.
        confidence: in (0, 1), with which the bound holds.
        power_epsilon: the largest ε that the method could have shown; None if it does not say.
    """

    method: str
    epsilon_lower: float
    confidence: float
    power_epsilon: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Attack:
    """How well users who were trained on are told from others (Kandpal et al. 2023).

    Args:
        against: what the released model was compared with, in words.
        auc: 0.5 is chance; ``low`` and ``high`` are of its interval.
        low: see ``auc``.
        high: see ``auc``.
        found: members found where at most ``false_alarms`` of the others are accused.
        false_alarms: a fraction.
    """

    against: str
    auc: float
    low: float
    high: float
    found: float
    false_alarms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Audited:
    """All that the last audit of a run left.

    Args:
        bounds: lower bounds on ε.
        flagged: what contradicted the claim, in words.
        attacks: on the released model.
    """

    bounds: tuple[AuditFacts, ...] = ()
    flagged: tuple[str, ...] = ()
    attacks: tuple[Attack, ...] = ()


def read_audited(run: Path) -> Audited:
    """The last audit of the run; empty if there was none.

    Raises:
        UseError: the file cannot be read, or is no audit's.
    """
    path = run / AUDIT
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        extra = values.get("extra_run")
        return Audited(
            bounds=() if extra is None else _bounds(extra),
            flagged=tuple(str(what) for what in values.get("flagged", ())),
            attacks=_attacks(values),
        )
    except FileNotFoundError:
        return Audited()
    except OSError as error:
        raise UseError(
            f"cannot read {path}: {error.strerror}; it is for the run's operator",
            hint="ask its operator, or make a public report with --public",
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UseError(
            f"{path} is damaged: {error!r}", hint="audit again: userdp audit RUN --store STORE"
        ) from error


def audit_of(entry: Mapping[str, Any]) -> AuditFacts | None:
    """A bound from a line of kind "audit" in operator.jsonl; None for one that states no method."""
    if "method" not in entry or entry.get("epsilon_lower") is None:
        return None
    return AuditFacts(
        method=str(entry["method"]),
        epsilon_lower=float(entry["epsilon_lower"]),
        confidence=float(entry["confidence"]),
        power_epsilon=_finite(entry.get("power_epsilon")),
    )


def _bounds(extra: Mapping[str, Any]) -> tuple[AuditFacts, ...]:
    canaries, steps = extra["bound"], extra["steps"]
    return (
        AuditFacts(
            method=CANARIES,
            epsilon_lower=float(canaries["epsilon_lower"]),
            confidence=float(canaries["confidence"]),
            power_epsilon=_finite(canaries.get("most_detectable")),
        ),
        AuditFacts(
            method=STEPS,
            epsilon_lower=float(steps["epsilon_lower"]),
            confidence=float(steps["confidence"]),
            power_epsilon=None,
        ),
    )


def _attacks(values: Mapping[str, Any]) -> tuple[Attack, ...]:
    found = []
    if (base := values.get("inference")) is not None:
        found.append(_attack(base, against="the base model"))
    if (others := values.get("references")) is not None:
        found.append(_attack(others, against=f"{int(others['runs'])} reference runs"))
    return tuple(found)


def _attack(roc: Mapping[str, Any], *, against: str) -> Attack:
    return Attack(
        against=against,
        auc=float(roc["auc"]),
        low=float(roc["auc_low"]),
        high=float(roc["auc_high"]),
        found=float(roc["tpr_at_low_fpr"]),
        false_alarms=float(roc["low_fpr"]),
    )


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
