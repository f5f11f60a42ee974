"""The order in which a run's folder and the ledgers are written when it is opened."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from userdp import files
from userdp.claims.inheritance import inherited
from userdp.claims.lineage import Lineage, lineage_from
from userdp.claims.payers import payer_of
from userdp.codec import encode
from userdp.data.meta import read_meta
from userdp.data.states import StateKind
from userdp.data.store import UserStore
from userdp.errors import UseError
from userdp.ledger import RunFolder, RunLedger, StoreLedger
from userdp.ledger.history import History
from userdp.ledger.journal import read_entries
from userdp.ledger.opening import Counter
from userdp.ledger.run import charges_in, count_attempts, is_begun, nonces_of
from userdp.ledger.store_journal import new_id
from userdp.plans import Plan
from userdp.training.opened import note_copy


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """The order in which a run's folder and the store's ledger are written, so that a kill between
    any two lines does no harm: resuming does again only what is not done yet.

    The nonce of an opening is in the folder first, then in the store's ledger, then in the run's: a
    folder that holds the store's last nonce, as one that is to be written or as one that was, is
    the folder that was opened last. The one that the store knows stays in the folder beside the new
    one, so that any number of openings may be killed one after another. The store is charged before
    the run's ledger exists, so that no step can be taken whose plan the store does not know; a
    further charge is in the folder first, so that it is not made twice.
    """

    folder: RunFolder
    charges: StoreLedger
    store: UserStore
    run_id: str
    written: Sequence[str]
    begun_charge: str | None
    expected: Mapping[str, str]
    plan: Plan | None
    priced: Plan | None
    constants: str
    slot: str | None
    logged: bool
    steered: bool

    def open(self, base: Lineage, facts: Mapping[str, Any], *, again: bool) -> RunLedger:
        history, nonce = self.charges.history(), new_id()
        begun = is_begun(self.folder.ledger)
        entries = read_entries(self.folder.ledger) if begun else []
        paid = charges_in(entries)
        charge, last = (paid or [self.run_id])[-1], nonces_of(entries)[-1:]
        if begun and self.begun_charge not in (None, *paid):
            charge, last = str(self.begun_charge), []  # what a kill left unfinished
        elif begun and again:
            charge, last = new_id(), []
        opened, before = history.nonces.get(charge, (None, 0))
        # Only an opening that a kill left unfinished has more than one nonce that may be the last.
        whole = opened is None or list(self.written[-1:]) == last
        known = last if whole else [*self.written, *last]
        counter = Counter(self.charges.place.counter(charge), begun=opened is not None)
        try:
            # An opening that a kill left unfinished has taken no step, and a kill loses one step at
            # most: else the run's ledger was put back to an earlier state.
            unfinished = opened is not None and [opened] != last
            lost = counter.attempts - (before if unfinished else count_attempts(entries))
            if lost > (0 if unfinished else 1):
                known = ["none: put back"]
            _require_nobody_erased(self.store)
            # Asked before anything is written here: what a copy holds must stay what it was.
            self.charges.require_last(charge, known)
            self._write(nonces=[opened, nonce] if opened else [nonce], charge=charge)
            try:
                self._charge(history, charge, base)
            except UseError:
                if not begun:  # nothing was charged, so that there is nothing to go on with
                    self.folder.resume.unlink()
                    counter.forget()
                raise
            # After the charge: steps of which the store knows no charge are refused by everybody.
            if begun and charge not in (self.run_id, *paid):
                counter.begin_at(count_attempts(entries))
            self.charges.open(charge, known=known, nonce=nonce, attempts=counter.attempts)
            if begun:
                ledger = RunLedger(self.folder.ledger)
                note_copy(ledger, self.charges)
            else:
                history = self.charges.history()
                origin = base + inherited(history, self.run_id, self.constants)
                own = history.charges.get(self.run_id)
                if own is not None and own.base:  # what was known before a kill stays known
                    origin += lineage_from(own.base, what=f"the base of {self.run_id}")
                origin = origin.among(history.id, history.ids)
                payer = payer_of(history, charge)
                ledger = RunLedger.create(
                    self.folder.ledger,
                    plan=self.plan,
                    run_id=self.run_id,
                    lineage=origin.plain,
                    facts=facts,
                    trial=self.slot is not None,
                    sweep=None if self.slot else history.sweep_of(self.constants),
                    payer=None if payer is None else encode(payer),
                )
            ledger.open(nonce, counter, charge=charge)
        except BaseException:
            counter.close()
            raise
        return ledger

    def _write(self, *, nonces: Sequence[str], charge: str) -> None:
        files.write_json(
            self.folder.resume,
            {
                "run_id": self.run_id,
                "nonces": list(nonces),
                "charge": charge,
                "store_path": str(self.store.path.resolve()),
                "store_beside": os.path.relpath(self.store.path, self.folder.path),
                "state": self.store.meta.state.id,
                "digests": dict(self.expected),
            },
            mode=files.OPERATOR_FILE,
        )

    def _charge(self, history: History, charge: str, base: Lineage) -> None:
        if self.slot is not None and self.plan is not None:
            self.charges.take_slot(
                self.slot, charge, self.plan, constants=self.constants, base=base.plain
            )
        elif charge not in history.charges:
            # Whoever knows the seed can undo the noise, so that such a run counts as one without
            # privacy.
            further = self.run_id if charge != self.run_id else None
            self.charges.reserve(
                charge,
                self.priced,
                again=further,
                base=base.plain,
                constants=self.constants,
                logged=self.logged,
                steered=self.steered,
                state=self.store.meta.state.id,
            )


def _require_nobody_erased(store: UserStore) -> None:
    """`UseError` if somebody was erased from the store since it was opened to train on.

    Asked once the charge's counter is locked: from then on an erasure finds that the run is open.
    """
    later = read_meta(store.path).states[len(store.meta.states) :]
    if any(state.kind is StateKind.ERASED for state in later):
        raise UseError(
            f"the store at {store.path} lost somebody while the run was opened, and it "
            "would train on text of a person who was erased",
            hint="begin again",
        )
