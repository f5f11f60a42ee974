"""Opens a run: whether it may begin or resume, and the order in which everything is written.

A kill between any two lines does no harm: resuming does again only what is not done yet.

1. The folder is locked, so that no two processes begin in it.
2. The nonce of this opening is in the folder first, then in the store's ledger, then in the run's.
   A folder that holds the store's last nonce, as one to be written or as one that was, is the
   folder that was opened last; a copy of it, or an earlier state, is refused. The nonce that the
   store knows stays in the folder beside the new one, so that any number of openings may be killed
   one after another.
3. The store is charged before the run's ledger exists, so that no step can be taken whose plan the
   store does not know. A further charge (`PrivateOptions.charge_again`) is in the folder first, so
   that it is not made twice.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from userdp import files
from userdp.claims.inheritance import inherited
from userdp.claims.lineage import Lineage, lineage_from
from userdp.claims.payers import payer_of
from userdp.claims.weights import digest_of
from userdp.codec import digest, encode
from userdp.data.blocks import require_intact
from userdp.data.meta import read_meta
from userdp.data.places import Place, remember
from userdp.data.scores import digest_of_scores
from userdp.data.states import StateKind
from userdp.data.store import UserStore
from userdp.errors import FailureError, UseError
from userdp.ledger import RunFolder, RunLedger, StoreLedger
from userdp.ledger.folder import train_toml
from userdp.ledger.history import History
from userdp.ledger.journal import read_entries
from userdp.ledger.opening import Counter
from userdp.ledger.run import charges_in, count_attempts, is_begun, nonces_of
from userdp.ledger.store_journal import new_id
from userdp.plans import Plan
from userdp.training.config import PrivateOptions
from userdp.training.models import resolve
from userdp.training.opened import OpenRun, note_copy, settle_finished
from userdp.training.store_facts import store_facts
from userdp.version import __version__


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerNotes:
    """What a trainer of this package says of the run that it opens; a loop of somebody's own, none.

    Args:
        identity: digests of anything else that a resumed run must share; kept operator-only.
        facts: public constants to note in the ledger's first line.
        train: settings of ``userdp train`` by section, to note in train.toml; for its loop alone,
            of which they are all the constants. Of any other loop the claim would leave out what it
            followed.
        loop: plain values for loop.json, of a loop of somebody's own.
        weights: the digest of those that a new run begins with; None of a sharded model's.
        base: what the model's weights descend from, adapters included; None where that is to be
            looked up: by the weights themselves in the store's ledger, and in the folder that
            ``model.name_or_path`` names.
        slot: of a private selection in the store's ledger, which pays for this run; the run then
            claims nothing by itself (`userdp.sweeping.sweep`).
        log_only: exact numbers are written down and nothing follows them: they are a look at the
            run's end, and no condition of its own claim.
    """

    identity: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    train: Mapping[str, Mapping[str, Any]] | None = None
    loop: Mapping[str, Any] | None = None
    weights: str | None = None
    base: Lineage | None = None
    slot: str | None = None
    log_only: bool = False


def constants_digest(
    plan: Plan | None,
    learning: Mapping[str, Any] | None,
    store: UserStore,
    *,
    scores: Path | None = None,
) -> str:
    """What `StoreLedger.declare` records beforehand of a run, and what a slot is for.

    Its plan and configuration; and the text, the base model and the scores themselves, since
    whoever exchanges one of them after a look has chosen it by the look.
    """
    name = str((learning or {}).get("model", ""))
    base = Path(resolve(name)) if name else None
    files_there = base is not None and any(base.glob("*.safetensors"))
    return digest(
        {
            "plan": encode(plan),
            "learning": dict(learning or {}),
            "text": store.meta.content_sha256,
            "base": digest_of(base) if base is not None and files_there else "",
            "scores": None if scores is None else digest_of_scores(scores),
        }
    )


def open_run(
    out: Path,
    store: UserStore,
    plan: Plan | None,
    *,
    options: PrivateOptions,
    notes: TrainerNotes,
    resume: bool = False,
) -> OpenRun:
    """Begin a run in a new folder, or continue one.

    Args:
        out: the folder.
        store: whose people are charged.
        plan: None for a run without privacy.
        options: of the run; with test seeds it may claim nothing.
        notes: of the trainer; ``base`` must be known.
        resume: continue an interrupted run.

    Raises:
        FailureError: another process holds the folder, or a copy of it; or the disk refused.
        UseError: the folder is not a new one (or, to resume, not an interrupted run's, or a copy
            of one); the store is damaged; the store, the plan, the model or the configuration is
            not what the run began with.
    """
    folder, made = RunFolder(out), not out.exists()
    require_intact(store)  # before the folder is made and anything is charged
    with ExitStack() as lock:
        try:
            out.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder.lock, os.O_RDWR | os.O_CREAT, files.OPERATOR_FILE)
            lock.callback(os.close, descriptor)
        except OSError as error:
            raise FailureError(f"cannot write to {out}: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise FailureError(
                f"the run folder {out} is in use by another process, which trains there",
                hint="wait for it, or choose another --out",
            ) from error
        try:
            opening = Opening(folder, store, plan, options, notes, resume=resume)
            ledger = opening.open()
        except BaseException:
            if made and not folder.resume.exists():
                shutil.rmtree(out)
            raise
        return OpenRun(
            run_id=opening.run_id,
            folder=folder,
            ledger=ledger,
            store=opening.charges,
            lock=lock.pop_all(),
            steered=opening.steered,
            began_with=opening.began_with,
        )


def require_unused(folder: RunFolder) -> None:
    """`UseError` unless a folder is new, or holds at most what a beginning that was killed left."""
    if folder.begun:
        raise UseError(
            f"there is a run at {folder.path} already",
            hint="go on with it with --resume, or choose another --out",
        )
    ours = (folder.lock, folder.plan, folder.train, folder.loop)
    held = folder.path.iterdir() if folder.path.exists() else ()
    if any(one not in ours and not one.name.startswith(files.TEMPORARY) for one in held):
        raise UseError(
            f"{folder.path} is not empty and holds no run: nothing of it is overwritten",
            hint="choose another --out",
        )


class Opening:
    """One call of `open_run`, in a folder that this process holds; the arguments are its own."""

    def __init__(
        self,
        folder: RunFolder,
        store: UserStore,
        plan: Plan | None,
        options: PrivateOptions,
        notes: TrainerNotes,
        *,
        resume: bool,
    ) -> None:
        self.folder, self.store, self.plan = folder, store, plan
        self.options, self.notes = options, notes
        self.charges = StoreLedger(store.path)
        self.constants = constants_digest(
            plan, (notes.train or {}).get("learning"), store, scores=options.scores
        )
        # A loop of somebody's own takes the steps: no options say how it learns.
        self.steered = plan is not None and notes.train is None
        self.digests = {
            **notes.identity,
            "store": store.meta.content_sha256,
            "plan": plan.digest if plan else "none",
            **({"slot that pays": notes.slot} if notes.slot else {}),
        }
        kept: Mapping[str, Any] = {"run_id": new_id(), "nonces": [], "charge": None}
        if resume:
            kept = self._require_resumable()
        else:
            require_unused(folder)
        self.run_id, self.nonces, self.charge = kept["run_id"], kept["nonces"], kept["charge"]
        self.began_with: str | None = kept.get("weights", notes.weights)
        self.resume = resume

    def open(self) -> RunLedger:
        """Write everything, in order."""
        folder, notes = self.folder, self.notes
        files.sweep(folder.path)
        remember(self.store.path, Place.RUN, folder.path)
        if not self.resume:
            if self.plan is not None:
                self.plan.save(folder.plan)
            if notes.train is not None:
                files.write_file(folder.train, train_toml(notes.train).encode())
            if notes.loop is not None:
                files.write_json(folder.loop, notes.loop, mode=files.OPERATOR_FILE)
        history, nonce = self.charges.history(), new_id()
        begun = is_begun(folder.ledger)
        entries = read_entries(folder.ledger) if begun else []
        paid = charges_in(entries)
        charge, last = (paid or [self.run_id])[-1], nonces_of(entries)[-1:]
        if begun and self.charge not in (None, *paid):
            charge, last = str(self.charge), []  # what a kill left unfinished
        elif begun and self.options.charge_again:
            charge, last = new_id(), []
        opened, before = history.nonces.get(charge, (None, 0))
        # Only an opening that a kill left unfinished has more than one nonce that may be the last.
        whole = opened is None or list(self.nonces[-1:]) == last
        known = last if whole else [*self.nonces, *last]
        counter = Counter(self.charges.place.counter(charge), begun=opened is not None)
        try:
            # An opening that a kill left unfinished has taken no step, and a kill loses one step at
            # most: else the run's ledger was put back to an earlier state.
            unfinished = opened is not None and [opened] != last
            lost = counter.attempts - (before if unfinished else count_attempts(entries))
            if lost > (0 if unfinished else 1):
                known = ["none: put back"]
            self._require_nobody_erased()
            # Asked before anything is written here: what a copy holds must stay what it was.
            self.charges.require_last(charge, known)
            self._write_resume([opened, nonce] if opened else [nonce], charge)
            try:
                self.charge_plan(self.charges, history, charge)
            except UseError:  # nothing was charged: what goes on is what went on before
                if charge not in paid:  # else it counts what was attempted
                    counter.forget()
                if begun:
                    self._write_resume(self.nonces, (paid or [self.run_id])[-1])
                else:
                    folder.resume.unlink()
                raise
            # After the charge: steps of which the store knows no charge are refused by everybody.
            if begun and charge not in (self.run_id, *paid):
                counter.begin_at(count_attempts(entries))
            self.charges.open(charge, known=known, nonce=nonce, attempts=counter.attempts)
            if begun:
                ledger = RunLedger(folder.ledger)
                note_copy(ledger, self.charges)
            else:
                ledger = self._begin_ledger(charge)
            ledger.open(nonce, counter, charge=charge)
        except BaseException:
            counter.close()
            raise
        return ledger

    def _begin_ledger(self, charge: str) -> RunLedger:
        """The run's ledger, with its first line."""
        history = self.charges.history()
        assert self.notes.base is not None
        origin = self.notes.base + inherited(history, self.run_id, self.constants)
        own = history.charges.get(self.run_id)
        if own is not None and own.base:  # what was known before a kill stays known
            origin += lineage_from(own.base, what=f"the base of {self.run_id}")
        payer = payer_of(history, charge)
        slot = self.notes.slot
        facts = {
            **self.notes.facts,
            "userdp": __version__,
            "store": self.store.meta.store_id,
            "seq_len": self.store.meta.seq_len,
            "store_facts": store_facts(self.store),
        }
        if self.options.unsafe_seeds:
            facts["unsafe_seeds"] = True
        return RunLedger.create(
            self.folder.ledger,
            plan=self.plan,
            run_id=self.run_id,
            lineage=origin.among(history.id, history.ids).plain,
            facts=facts,
            trial=slot is not None,
            sweep=None if slot else history.sweep_of(self.constants),
            payer=None if payer is None else encode(payer),
        )

    def charge_plan(self, ledger: StoreLedger, history: History, charge: str) -> None:
        """Charge the whole plan, unless that was done; `UseError` if the store refuses it."""
        notes, plan = self.notes, self.plan
        assert notes.base is not None
        if notes.slot is not None and plan is not None:
            base = notes.base.plain
            ledger.take_slot(notes.slot, charge, plan, constants=self.constants, base=base)
        elif charge not in history.charges:
            ledger.reserve(
                charge,
                # Whoever knows the seed can undo the noise: such a run counts as one without
                # privacy.
                None if self.options.unsafe_seeds else plan,
                again=None if charge == self.run_id else self.run_id,
                base=notes.base.plain,
                constants=self.constants,
                logged=self.options.exact_log,
                steered=self.steered,
                state=self.store.meta.state.id,
            )

    def _write_resume(self, nonces: list[str], charge: str) -> None:
        values = {
            "run_id": self.run_id,
            "nonces": nonces,
            "charge": charge,
            "store_path": str(self.store.path.resolve()),
            "store_beside": os.path.relpath(self.store.path, self.folder.path),
            "state": self.store.meta.state.id,
            "digests": self.digests,
            "weights": self.began_with,
        }
        files.write_json(self.folder.resume, values, mode=files.OPERATOR_FILE)

    def _require_resumable(self) -> Mapping[str, Any]:
        """What an interrupted run keeps to go on by; `UseError` unless it is this run."""
        folder = self.folder
        if not folder.resume.exists():
            raise UseError(f"there is no interrupted run at {folder.path}", hint="begin a new one")
        kept = folder.read_resume()
        if folder.finished:
            # A kill may have come between the last line of the run and the store's.
            settle_finished(folder, self.charges)
            raise UseError(
                f"the run at {folder.path} is finished: its steps are spent",
                hint="train again in another --out, with a plan and a budget of its own",
            )
        for name, value in self.digests.items():
            if kept["digests"].get(name) == value:
                continue
            before, now = str(kept.get("state", "")), self.store.meta.state.id
            # For everybody who is still in it, the steps to come are those of the plan. An erasure
            # that the ledger does not hold is none: something else changed the store.
            only_erased = self.charges.history().only_erased_since
            if name == "store" and before != now and only_erased(before, now):
                continue
            raise UseError(
                f"the {name} is not the one that the run at {folder.path} began with",
                hint=f"resume with the {name} it began with, or begin a new run",
            )
        return kept

    def _require_nobody_erased(self) -> None:
        """`UseError` if somebody was erased from the store since it was opened to train on.

        Asked once the charge's counter is locked: from then on an erasure finds that the run is
        open.
        """
        later = read_meta(self.store.path).states[len(self.store.meta.states) :]
        if any(state.kind is StateKind.ERASED for state in later):
            raise UseError(
                f"the store at {self.store.path} lost somebody while the run was opened",
                hint="begin again, without the text of who was erased",
            )
