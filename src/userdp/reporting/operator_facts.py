"""What only the operator may see of a run: exact losses and counts, and what attacks showed.

No ε covers any of it. A public page is rendered without ever opening the files it comes from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints

from userdp.codec import decode
from userdp.ledger.folder import RunFolder, read_lines
from userdp.reporting.audit_facts import Audited, finite_or_none, read_audited

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
        non_finite: units that counted as zero for a gradient that was not finite.
        failed: units that counted as zero for an error that their examples caused.
        halvings: how often memory ran out in it, and passes were halved.
        seconds: that it took.
    """

    step: int
    loss: float | None = None
    units: int | None = None
    rows: int = 0
    clipped_fraction: float | None = None
    non_finite: int = 0
    failed: int = 0
    halvings: int = 0
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationFacts:
    """The weights' loss on a split.

    Args:
        step: after so many steps; 0 is the base model, None the released weights.
        final: measured after the run; such a pair is on the same users, those measured during
            training may be on fewer.
        split: the store's name for the people it was measured on.
        loss: per token, in nats; None where it was not finite.
        user_loss: mean over users of each one's mean; likewise.
        user_quantiles: of the users' own means, by name as "p50"; empty in older files.
        users: read.
        examples: read.
    """

    step: int | None
    final: bool
    split: str
    loss: float | None
    user_loss: float | None = None
    users: int | None = None
    examples: int | None = None
    user_quantiles: Mapping[str, float] = field(default_factory=dict)

    @property
    def perplexity(self) -> float | None:
        """``exp(loss)``."""
        return None if self.loss is None else math.exp(min(self.loss, 700.0))


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorFacts:
    """All of one run's operator-only numbers that a page shows.

    Args:
        steps: ascending.
        evaluations: ascending by step, the released weights last.
        audited: what the run's last audit left.
        machine: what the run was last on, in words; None in older files.
    """

    steps: tuple[StepFacts, ...]
    evaluations: tuple[EvaluationFacts, ...]
    audited: Audited = field(default_factory=Audited)
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
        return next((one for one in self._pair if one.step == 0), None)

    @property
    def after(self) -> EvaluationFacts | None:
        """The newest weights on held-out users, if they were measured."""
        later = [one for one in self._pair if one.step != 0]
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
        return final if any(one.step is None for one in final) else self._held_out(final=False)

    def _held_out(self, *, final: bool) -> tuple[EvaluationFacts, ...]:
        return tuple(e for e in self.evaluations if e.split == HELD_OUT_USERS and e.final is final)


def read_operator(run: Path) -> OperatorFacts:
    """The operator-only facts in a run's folder; empty if there are no such files.

    A later line replaces an earlier one of the same step (a resumed run repeats no step's number,
    an evaluation may be repeated).

    Raises:
        UseError: the file cannot be read.
    """
    folder = RunFolder(run)
    steps: dict[int, StepFacts] = {}
    evaluations: dict[tuple[int | None, str, bool], EvaluationFacts] = {}
    machine: str | None = None
    for entry in read_lines(folder.operator, _of_line, torn=True):
        if isinstance(entry, StepFacts):
            steps[entry.step] = entry
        elif isinstance(entry, EvaluationFacts):
            evaluations[entry.step, entry.split, entry.final] = entry
        elif isinstance(entry, str):
            machine = entry
    return OperatorFacts(
        steps=tuple(steps[number] for number in sorted(steps)),
        evaluations=tuple(
            sorted(evaluations.values(), key=lambda e: math.inf if e.step is None else e.step)
        ),
        audited=read_audited(folder),
        machine=machine,
    )


def _of_line(entry: dict[str, Any]) -> StepFacts | EvaluationFacts | str | None:
    """What a line of operator.jsonl tells a report; None for lines of other kinds."""
    match entry["kind"]:
        case "step":
            return StepFacts(**_known(StepFacts, entry))
        case "evaluation":
            return EvaluationFacts(final=False, **_known(EvaluationFacts, entry))
        case "final evaluation":
            step = 0 if entry["of"] == "base" else None
            return EvaluationFacts(**_known(EvaluationFacts, {**entry, "step": step}), final=True)
        case "machine":
            return _machine(entry)
    return None


def _known(kind: type[StepFacts | EvaluationFacts], entry: Mapping[str, Any]) -> dict[str, Any]:
    """What a line says of the fields of ``kind``; a number that is not finite is missing."""
    hints = get_type_hints(kind)
    found = {one.name: entry[one.name] for one in fields(kind) if one.name in entry}
    finite = {name: finite_or_none(value) for name, value in found.items()}
    return {name: decode(hints[name], value, what=name) for name, value in finite.items()}


def _machine(entry: dict[str, Any]) -> str:
    words = [str(entry["device"])]
    if entry.get("cores") is not None:
        words.append(f"{entry['cores']} cores, {entry.get('threads')} threads")
    words += [f"{name} {entry[name]}" for name in ("torch", "python") if name in entry]
    return "; ".join(words)


def _by_split(one: EvaluationFacts) -> tuple[bool, str, bool]:
    return (one.split != HELD_OUT_USERS, one.split, one.step is None)
