"""The run ledger: one line per attempted step, on the disk before its update is applied.

``ledger.jsonl`` may be handed on. It therefore holds only public constants, and
the clip norm where that adapts, a function of DP releases: no times (a step's
duration tells its cohort's size), no losses, no hash of the data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from userdp.codec import decode, encode
from userdp.errors import FailureError, UseError
from userdp.ledger.journal import JournalWriter, append_entries, read_entries
from userdp.noise.gaussian import KNOWN_SAMPLERS, NoiseSampler
from userdp.plan import Plan, StepRecord, Tuning
from userdp.plan.tuning import tuning_from

SCHEMA = "userdp.ledger/3"


class RunLedger:
    """The writer of a run's ledger, which `create` begins and which is gone on with by its path.

    Guarantee: when `attempt` returns, the step is on the disk and charged; a step that is not
    charged was never allowed. An attempt that a crash interrupted stays charged, so the steps
    that remain after a resume are ``plan.steps - attempts`` and ε never exceeds the plan's.

    Args:
        path: of a ledger that was begun.

    Attributes:
        plan: what its first line says; None of a run without privacy.
        attempts: steps charged so far.
        last_clip_norm: of the last of them; where the clip norm adapts, a resumed run goes on
            with it (what the interrupted step would have made of it is lost). None before any.
    """

    def __init__(self, path: Path) -> None:
        entries = read_entries(path)
        clips = [entry["l2_clip_norm"] for entry in entries if entry["kind"] == "attempt"]
        self.path = path
        self.plan = plan_of(path, entries)
        self.attempts = len(clips)
        self.last_clip_norm: float | None = clips[-1] if clips else None
        self._writer = JournalWriter(path)

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        plan: Plan | None,
        run_id: str,
        facts: dict[str, Any] | None = None,
        trial_of: str | None = None,
    ) -> RunLedger:
        """Begin a ledger; ``facts`` are public constants such as versions.

        ``plan`` is None for a run without privacy: its ε is infinite. ``trial_of`` names the
        private selection that pays for this run, of which only the winner claims anything.
        """
        header = {
            "kind": "run",
            "schema": SCHEMA,
            "run_id": run_id,
            "plan": encode(plan),
            "facts": facts or {},
        }
        if trial_of is not None:
            header["trial_of"] = trial_of
        _begin(path, [header])
        return cls(path)

    @property
    def remaining(self) -> int:
        """Steps that may still be attempted."""
        return 0 if self.plan is None else max(0, self.plan.steps - self.attempts)

    def attempt(self, step: StepRecord) -> int:
        """Charge one step and return its number, from 1. Call before the update is applied.

        Raises:
            FailureError: the step is not what the plan says, or all steps are spent, or the disk
                refused. The update must then not be applied.
        """
        if self.plan is None:
            raise FailureError("a run without privacy has no steps to charge")
        expected = StepRecord.of_plan(
            self.plan, l2_clip_norm=step.l2_clip_norm, noise_sampler=step.noise_sampler
        )
        if step != expected:
            raise FailureError(
                f"ledger and sampler disagree: step {self.attempts + 1} was {step}, the plan says "
                f"{expected}. The reported epsilon would not hold, so training stopped before this "
                "update",
                hint="plan again with what the sampler does",
            )
        if not self.remaining:
            raise FailureError(
                f"all {self.plan.steps} planned steps are spent: one more would exceed the "
                "plan's epsilon",
                hint="plan a new run with its own budget",
            )
        number = self.attempts + 1
        self._writer.append({"kind": "attempt", "attempt": number, **encode(step)})
        self.attempts = number
        self.last_clip_norm = step.l2_clip_norm
        return number

    def finish(self) -> None:
        """Note that the run ended as planned."""
        self._writer.append({"kind": "finish", "attempts": self.attempts})

    def close(self) -> None:
        """Close the file; every line is on the disk already."""
        self._writer.close()


def write_winner(source: Path, target: Path, tuning: Tuning | None, *, basis: str) -> None:
    """Write the ledger of a tuning's winner: that of its run, with what choosing it cost.

    Args:
        source: the ledger of the winner's run, finished.
        target: a new file.
        tuning: whose claim the winner has from now on; None where its choice is not private.
        basis: how it was chosen, in words, for the public facts.

    Raises:
        UseError: the run is not one of ``tuning``'s, or ``target`` exists.
    """
    entries = read_entries(source)
    plan = plan_of(source, entries)
    header = {key: value for key, value in entries[0].items() if key != "trial_of"}
    header["facts"] = {**header["facts"], "plan_basis": basis}
    if tuning is not None:
        if plan not in tuning.plans:
            raise UseError(f"{source} is of a plan that this tuning did not try")
        header["tuning"] = encode(tuning)
    _begin(target, [header, *entries[1:]])


def is_begun(path: Path) -> bool:
    """Whether there is a ledger with a first line: a kill may have left a file without one."""
    return path.exists() and bool(read_entries(path))


def _begin(path: Path, lines: list[dict[str, Any]]) -> None:
    def compose(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if entries:
            raise UseError(
                f"{path} exists already: a ledger is begun once",
                hint="resume the run, or choose another folder",
            )
        return lines

    append_entries(path, compose)


def tuning_of(path: Path, entries: list[dict[str, Any]]) -> Tuning | None:
    """The tuning that this run won, if it did; `UseError` if it cannot have."""
    values = entries[0].get("tuning")
    if values is None:
        return None
    tuning = tuning_from(values)
    if plan_of(path, entries) not in tuning.plans:
        raise UseError(f"{path} is of a plan that its tuning did not try")
    return tuning


def plan_of(path: Path, entries: list[dict[str, Any]]) -> Plan | None:
    """The plan in a run ledger's first line; `UseError` if these are no run ledger's entries."""
    if not entries or entries[0].get("kind") != "run" or entries[0].get("schema") != SCHEMA:
        raise UseError(f"{path} is not a run ledger of schema {SCHEMA}")
    plan = entries[0]["plan"]
    return None if plan is None else decode(Plan, plan, what=f"the plan in {path}")


def step_of(entry: dict[str, Any]) -> StepRecord:
    """What an attempt's line says of its step; `UseError` if it is none."""
    values = {key: value for key, value in entry.items() if key not in ("kind", "attempt")}
    return decode(StepRecord, values, what=f"attempt {entry.get('attempt')!r}")


def samplers_of(entries: list[dict[str, Any]]) -> tuple[NoiseSampler, ...] | None:
    """What drew the noise of the attempted steps, each once; None if a line does not say.

    Versions that drew float32 noise on accelerators wrote no such word: what they recorded has no
    ε.
    """
    named = {entry.get("noise_sampler") for entry in entries if entry["kind"] == "attempt"}
    if not named <= KNOWN_SAMPLERS:
        return None
    return tuple(sampler for sampler in NoiseSampler if sampler in named)


def count_attempts(entries: list[dict[str, Any]]) -> int:
    """Attempted steps among a run ledger's entries."""
    return sum(entry["kind"] == "attempt" for entry in entries)
