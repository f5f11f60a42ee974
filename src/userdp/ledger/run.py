"""The run ledger: one line per attempted step, on the disk before its update is applied.

``ledger.jsonl`` may be handed on. It therefore holds only public constants, and
the clip norm where that adapts, a function of DP releases: no times (a step's
duration tells its cohort's size), no losses, no hash of the data. Its first line says what the run
descends from (`userdp.claims.lineage`), each opening is a line with a nonce that the store's ledger
knows too, and the finishing line binds every file of the released model, the plan and the options
by their digests. Losses that were released under DP follow it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from userdp.codec import decode, encode
from userdp.errors import FailureError, UseError
from userdp.ledger.journal import JournalWriter, append_entries, read_entries
from userdp.ledger.opening import Counter
from userdp.ledger.shapes import RUN_SCHEMA
from userdp.noise.gaussian import KNOWN_SAMPLERS, NoiseSampler
from userdp.plans import Plan, StepRecord, Tuning
from userdp.plans.tuning import tuning_from

SCHEMA = RUN_SCHEMA


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
        charge: the id of the charge in the store's ledger that pays for the steps to come.
        last_clip_norm: of the last of them; where the clip norm adapts, a resumed run goes on
            with it (what the interrupted step would have made of it is lost). None before any.
    """

    def __init__(self, path: Path) -> None:
        entries = read_entries(path)
        clips = [entry["l2_clip_norm"] for entry in entries if entry["kind"] == "attempt"]
        self.path = path
        self.plan = plan_of(path, entries)
        self.attempts = count_attempts(entries)
        self.lineage: dict[str, Any] = entries[0]["lineage"]
        self._counter: Counter | None = None
        self._copied = is_copied(entries)
        self.charge = str((charges_in(entries) or [entries[0]["run_id"]])[-1])
        self.last_clip_norm: float | None = clips[-1] if clips else None
        self._writer = JournalWriter(path)

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        plan: Plan | None,
        run_id: str,
        lineage: Mapping[str, Any],
        facts: Mapping[str, Any] | None = None,
        trial: bool = False,
        sweep: str | None = None,
        payer: Mapping[str, Any] | None = None,
    ) -> RunLedger:
        """Begin a ledger.

        Args:
            path: a new file.
            plan: None for a run without privacy: its ε is infinite.
            run_id: random.
            lineage: what the run descends from, itself left out, as plain values.
            facts: public constants such as versions.
            trial: a private selection pays for this run, of which only the winner claims anything.
            sweep: the id of any other sweep that this run is a trial of.
            payer: the filter or the series that pays for it, as plain values; None for itself.
        """
        header = {
            "kind": "run",
            "schema": SCHEMA,
            "run_id": run_id,
            "plan": encode(plan),
            "facts": dict(facts or {}),
            "lineage": dict(lineage),
        }
        if trial:
            header["trial"] = True
        if sweep is not None:
            header["sweep"] = sweep
        if payer is not None:
            header["payer"] = dict(payer)
        _begin(path, [header])
        return cls(path)

    def open(self, nonce: str, counter: Counter, *, charge: str) -> None:
        """Record an opening, and charge what other folders of this run took.

        Args:
            nonce: of this opening, known to the store's ledger already.
            counter: of the charge, held by this process.
            charge: its id in the store's ledger: the run's own, or that of a further charge.
        """
        lost = counter.attempts - self.attempts if self.plan is not None else 0
        if lost > 0:  # a crash before the line was written, or a folder that was put back
            self._writer.append({"kind": "lost", "attempts": lost})
            self.attempts += lost
        self._writer.append({"kind": "open", "nonce": nonce, "charge": charge})
        self._counter, self.charge = counter, charge

    def note_copy(self) -> None:
        """Note, once, that the store's ledger was found to be a copy, or put back, since it began.

        The first line says so of a run that began in such a store.
        """
        if not self._copied:
            self._writer.append({"kind": "copied"})
            self._copied = True

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
        if self._counter is not None:
            self._counter.count()
        self._writer.append({"kind": "attempt", "attempt": number, **encode(step)})
        self.attempts = number
        self.last_clip_norm = step.l2_clip_norm
        return number

    def finish(
        self,
        digests: Mapping[str, str | None],
        *,
        files: Mapping[str, str] | None = None,
        looks: Sequence[str] = (),
        since: Mapping[str, Any] | None = None,
    ) -> None:
        """Note that the run ended as planned, and bind what it released.

        Args:
            digests: of the released weights, of plan.json, of train.toml and of the adapter's
                weights; None for what is not there.
            files: digest of each file of the released model (`userdp.claims.bound`).
            looks: what showed exact numbers while it was open, and may have steered it.
            since: what was released meanwhile, and may have steered it, as plain values.
        """
        entry: dict[str, Any] = {"kind": "finish", "attempts": self.attempts}
        entry |= {"digests": dict(digests), "files": dict(files or {})}
        entry |= {"looks": list(looks)} if looks else {}
        self._writer.append(entry | ({"since": dict(since)} if since else {}))

    def close(self) -> None:
        """Close the file; every line is on the disk already."""
        self._writer.close()
        if self._counter is not None:
            self._counter.close()
            self._counter = None


def write_winner(
    source: Path,
    target: Path,
    tuning: Tuning | None,
    *,
    tuning_id: str,
    basis: str,
    lineage: Mapping[str, Any],
) -> None:
    """Write the ledger of a tuning's winner: that of its run, with what choosing it cost.

    Args:
        source: the ledger of the winner's run, finished.
        target: a new file.
        tuning: whose claim the winner has from now on; None where its choice is not private.
        tuning_id: random; of the tuning, as the store's ledger knows it.
        basis: how it was chosen, in words, for the public facts.
        lineage: what the tuning descends from, itself left out.

    Raises:
        UseError: the run is not one of ``tuning``'s, or ``target`` exists.
    """
    entries = read_entries(source)
    plan = plan_of(source, entries)
    header = {key: one for key, one in entries[0].items() if key not in ("trial", "sweep")}
    header["facts"] = {**header["facts"], "plan_basis": basis}
    header["lineage"] = dict(lineage)
    if tuning is not None:
        if plan not in tuning.plans:
            raise UseError(f"{source} is of a plan that this tuning did not try")
        header["tuning"] = encode(tuning)
        header["run_id"] = tuning_id
    # When it was opened, and how often, is a fact of the trial.
    _begin(target, [header, *(entry for entry in entries[1:] if entry["kind"] != "open")])


def append_release(path: Path, values: Mapping[str, Any]) -> None:
    """Add a DP release to a finished run's ledger; `UseError` if the run is not finished."""

    def compose(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if finish_of(entries) is None:
            raise UseError(f"the run of {path} is not finished: it has released no model")
        return [{"kind": "release", **values}]

    append_entries(path, compose)


def releases_of(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The DP releases in a run ledger's entries, oldest first."""
    return [entry for entry in entries if entry["kind"] == "release"]


def finish_of(entries: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The line that notes a run's end, if it ended."""
    return next((entry for entry in entries if entry["kind"] == "finish"), None)


def is_copied(entries: list[dict[str, Any]]) -> bool:
    """Whether a run went on in a store that was copied or put back; see `RunLedger.note_copy`."""
    return any(entry["kind"] == "copied" for entry in entries)


def nonces_of(entries: list[dict[str, Any]]) -> list[str]:
    """Of a run's openings, oldest first."""
    return [entry["nonce"] for entry in entries if entry["kind"] == "open"]


def charges_in(entries: list[dict[str, Any]]) -> list[str]:
    """The charges in the store's ledger that paid for a run, each once."""
    return list(dict.fromkeys(e["charge"] for e in entries if e["kind"] == "open"))


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
    """Attempted steps among a run ledger's entries, those of lost folders included."""
    lost: int = sum(entry["attempts"] for entry in entries if entry["kind"] == "lost")
    lines: int = sum(entry["kind"] == "attempt" for entry in entries)
    return lost + lines
