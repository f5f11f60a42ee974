"""What attacks on a run showed, from the file that `userdp audit` leaves. Operator-only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from userdp.codec import decode
from userdp.errors import UseError, kind_of
from userdp.ledger.folder import RunFolder
from userdp.strict_json import parse

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
        auc: 0.5 is chance.
        auc_low: the lower end of its interval.
        auc_high: the upper end.
        tpr_at_low_fpr: the fraction of members found where at most ``low_fpr`` of the others are
            accused.
        low_fpr: a fraction.
    """

    against: str
    auc: float
    auc_low: float
    auc_high: float
    tpr_at_low_fpr: float
    low_fpr: float


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


def read_audited(run: RunFolder) -> Audited:
    """The last audit of the run; empty if there was none.

    Raises:
        UseError: the file cannot be read, or is no audit's.
    """
    path = run.audit / "audit.json"
    try:
        values = parse(path.read_bytes(), finite=False)
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
            f"{path} is damaged: {kind_of(error)}",
            hint="audit again: userdp audit RUN --store STORE",
        ) from error


def _bounds(extra: Mapping[str, Any]) -> tuple[AuditFacts, ...]:
    return tuple(
        AuditFacts(
            method=method,
            epsilon_lower=_number(part, "epsilon_lower"),
            confidence=_number(part, "confidence"),
            power_epsilon=_power(part),
        )
        for method, part in ((CANARIES, extra["bound"]), (STEPS, extra["steps"]))
    )


def _attacks(values: Mapping[str, Any]) -> tuple[Attack, ...]:
    others = values.get("references")
    against = {
        "the base model": values.get("inference"),
        f"{_number(others, 'runs'):.0f} reference runs" if others else "": others,
    }
    names = ("auc", "auc_low", "auc_high", "tpr_at_low_fpr", "low_fpr")
    return tuple(
        Attack(against=what, **{name: _number(roc, name) for name in names})
        for what, roc in against.items()
        if roc
    )


def _number(values: Mapping[str, Any], name: str) -> float:
    found: float = decode(float, values[name], what=name)
    return found


def _power(part: Mapping[str, Any]) -> float | None:
    """The largest ε that could have been shown; None where that is any, or is not said."""
    most = finite_or_none(part.get("most_detectable"))
    return None if most is None else _number(part, "most_detectable")


def finite_or_none(value: Any) -> Any:
    """The value; None in place of a number that is not finite, or of its word in JSON."""
    not_finite = isinstance(value, float) and not math.isfinite(value)
    return None if not_finite or value in ("inf", "-inf", "nan") else value
