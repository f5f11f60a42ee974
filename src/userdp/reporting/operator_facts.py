"""What the operator alone may see of a run: exact losses and counts, and what attacks showed.

No ε covers any of it. A public page is rendered without ever opening the files it comes from.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from userdp.errors import UseError
from userdp.reporting.audit_facts import Attack, AuditFacts, audit_of, read_audited

OPERATOR = "operator.jsonl"
HELD_OUT_USERS = "held-out-users"


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFacts:
    """One step: exact, about private data.

    Args:
        step: its number, from 1.
        loss: mean over the units drawn, in nats; None where nobody was drawn.
        units: users (ULS) or examples (ELS) drawn; None where nothing is drawn (no privacy).
        rows: examples read.
        clipped_fraction: of the units drawn; None where none was.
        non_finite: units that counted as zero.
        seconds: that it took.
    """

    step: int
    loss: float | None
    units: int | None
    rows: int
    clipped_fraction: float | None
    non_finite: int
    seconds: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationFacts:
    """The weights' loss on a split.

    Args:
        step: after so many steps; 0 is the base model, None the released weights.
        final: measured after the run; such a pair is on the same users, those measured during
            training may be on fewer.
        split: the store's name for the people it was measured on.
        loss: per token, in nats.
        user_loss: mean over users of each one's mean.
        user_quantiles: of the users' own means, by name as "p50"; empty in older files.
        users: read.
        examples: read.
    """

    step: int | None
    final: bool
    split: str
    loss: float
    user_loss: float | None
    users: int | None
    examples: int | None
    user_quantiles: Mapping[str, float] = field(default_factory=dict)

    @property
    def perplexity(self) -> float:
        """``exp(loss)``."""
        return math.exp(min(self.loss, 700.0))


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorFacts:
    """All of one run's operator-only numbers that a page shows.

    Args:
        steps: ascending.
        evaluations: ascending by step, the released weights last.
        audits: the newest lower bound of each method.
        flagged: what of the run's last audit contradicts its claim, in words.
        attacks: on its released model.
        machine: what the run was last on, in words; None in older files.
    """

    steps: tuple[StepFacts, ...]
    evaluations: tuple[EvaluationFacts, ...]
    audits: tuple[AuditFacts, ...] = ()
    flagged: tuple[str, ...] = ()
    attacks: tuple[Attack, ...] = ()
    machine: str | None = None

    @property
    def final(self) -> tuple[EvaluationFacts, ...]:
        """Measurements made after the run, by split: the base model's first."""
        return tuple(sorted((e for e in self.evaluations if e.final), key=_by_split))

    @property
    def gradients(self) -> int:
        """Gradients computed, over all steps that the file holds."""
        return sum(step.rows for step in self.steps)

    @property
    def seconds(self) -> float:
        """That the steps took."""
        return math.fsum(step.seconds for step in self.steps if step.seconds is not None)

    @property
    def before(self) -> EvaluationFacts | None:
        """The base model on held-out users, if it was measured on the same ones as `after`."""
        return next((found for found in self._pair if found.step == 0), None)

    @property
    def after(self) -> EvaluationFacts | None:
        """The newest weights on held-out users, if they were measured."""
        later = [found for found in self._pair if found.step != 0]
        return later[-1] if later else None

    @property
    def curve(self) -> tuple[EvaluationFacts, ...]:
        """Held-out losses during training; those before and after it, if there are no others."""
        during = self._held_out(final=False)
        return during if len(during) > 1 else self._pair

    @property
    def _pair(self) -> tuple[EvaluationFacts, ...]:
        """The final measurements if the released weights are among them, else those during."""
        final = self._held_out(final=True)
        return final if any(found.step is None for found in final) else self._held_out(final=False)

    def _held_out(self, *, final: bool) -> tuple[EvaluationFacts, ...]:
        return tuple(e for e in self.evaluations if e.split == HELD_OUT_USERS and e.final is final)


def read_operator(run: Path) -> OperatorFacts:
    """The operator-only facts in a run's folder; empty if there are no such files.

    A later line replaces an earlier one of the same step (a resumed run repeats no step's number,
    an evaluation may be repeated).

    Raises:
        UseError: the file cannot be read.
    """
    path = run / OPERATOR
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        lines = []
    except OSError as error:
        raise UseError(
            f"cannot read {path}: {error.strerror}; it is for the run's operator",
            hint="ask its operator, or make a public report with --public",
        ) from error
    steps: dict[int, StepFacts] = {}
    evaluations: dict[tuple[int | None, str, bool], EvaluationFacts] = {}
    audited = read_audited(run)
    audits = {bound.method: bound for bound in audited.bounds}
    machine = None
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
            kind = entry["kind"]
            if kind == "step":
                step = _step(entry)
                steps[step.step] = step
            elif kind in ("evaluation", "final evaluation"):
                found = _evaluation(entry)
                evaluations[found.step, found.split, found.final] = found
            elif kind == "audit":
                bound = audit_of(entry)
                if bound is not None:
                    audits[bound.method] = bound
            elif kind == "machine":
                machine = _machine(entry)
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                break  # a line that a crash cut short
            raise UseError(f"line {number} of {path} is damaged: {error!r}") from error
    return OperatorFacts(
        steps=tuple(steps[number] for number in sorted(steps)),
        evaluations=tuple(
            sorted(evaluations.values(), key=lambda e: math.inf if e.step is None else e.step)
        ),
        audits=tuple(audits.values()),
        flagged=audited.flagged,
        attacks=audited.attacks,
        machine=machine,
    )


def _step(entry: dict[str, Any]) -> StepFacts:
    return StepFacts(
        step=int(entry["step"]),
        loss=_number(entry.get("loss")),
        units=entry.get("units"),
        rows=int(entry.get("rows", 0)),
        clipped_fraction=_number(entry.get("clipped_fraction")),
        non_finite=int(entry.get("non_finite", 0)),
        seconds=_number(entry.get("seconds")),
    )


def _evaluation(entry: dict[str, Any]) -> EvaluationFacts:
    final = entry["kind"] == "final evaluation"
    step = (0 if entry["of"] == "base" else None) if final else int(entry["step"])
    return EvaluationFacts(
        step=step,
        final=final,
        split=str(entry["split"]),
        loss=float(entry["loss"]),
        user_loss=_number(entry.get("user_loss")),
        users=entry.get("users"),
        examples=entry.get("examples"),
        user_quantiles={
            str(name): float(value) for name, value in (entry.get("user_quantiles") or {}).items()
        },
    )


def _machine(entry: dict[str, Any]) -> str:
    words = [str(entry["device"])]
    if entry.get("cores") is not None:
        words.append(f"{entry['cores']} cores, {entry.get('threads')} threads")
    words += [f"{name} {entry[name]}" for name in ("torch", "python") if name in entry]
    return "; ".join(words)


def _by_split(found: EvaluationFacts) -> tuple[bool, str, bool]:
    return (found.split != HELD_OUT_USERS, found.split, found.step is None)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
