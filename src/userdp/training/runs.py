"""Who holds a run's folder, and whether a run may begin or resume; see `userdp.ledger.folder`."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from userdp import files
from userdp.claims.bound import bound_files
from userdp.claims.claims import charged_since, inherited, run_lineage
from userdp.claims.conditions import COPIED, looked_at
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
from userdp.training.models import resolve
from userdp.version import __version__


@dataclass(kw_only=True, slots=True)
class OpenRun:
    """A run folder that this process holds, with its ledger, until `close`.

    Guarantee: while it is open nobody else trains in this folder or in a copy of it; the store has
    been charged with the whole plan before this exists.

    Args:
        run_id: random.
        folder: of the run.
        ledger: the run's.
        store: the ledger of the store's people.
        lock: descriptor of the lock file; None once it is closed.
        steered: a loop of somebody's own takes its steps, whose constants (the learning rate, say)
            nobody has recorded.
    """

    run_id: str
    folder: RunFolder
    ledger: RunLedger
    store: StoreLedger
    lock: int | None
    steered: bool = False

    @property
    def lineage(self) -> Lineage:
        """What the model that this run releases descends from, the run itself included."""
        copied = [COPIED] if self.store.history().copied else []
        told = Lineage(conditions=(*copied, *looked_at(self.looks)))
        return self._own_lineage + self.since + told

    @property
    def since(self) -> Lineage:
        """What was released of these people since the run was charged, and may have steered it."""
        history = self.store.history()
        own = history.charges.get(self.run_id)
        return charged_since(history, own) if self.steered and own is not None else Lineage()

    @property
    def logged(self) -> bool:
        """Whether the run keeps exact numbers, as was said when it was charged."""
        charge = self.store.history().charges.get(self.run_id)
        return charge is None or charge.logged

    @property
    def looks(self) -> tuple[str, ...]:
        """What showed exact numbers since the run was charged, where they may have steered it."""
        history = self.store.history()
        own = history.charges.get(self.ledger.charge)
        if not self.steered or own is None:
            return ()
        # Ledgers of before that was noted do not say that a loop of somebody's own is open.
        return tuple(sorted(history.looked_during(replace(own, steered=True))))

    def released_elsewhere(self, weights: str) -> bool:
        """Whether weights of this digest hold what another run over these people has learned.

        Those that this run's own lineage tells of, such as its base model's, are none.
        """
        told = {part.id for part in self._own_lineage.parts}
        known = [
            lineage_from(one.lineage, what="the lineage of released weights")
            for one in self.store.history().released
            if one.weights == weights
        ]
        return any({part.id for part in one.parts} - told for one in known)

    @property
    def _own_lineage(self) -> Lineage:
        return run_lineage(self.ledger.path, read_entries(self.ledger.path))

    def finish(self, weights: str | None = None) -> None:
        """Note the end in the ledger and settle with the store.

        Args:
            weights: the digest of the weights that were released, if they are known here.
        """
        folder = self.folder
        plan, options = self.ledger.plan, folder.train
        _note_copy(self.ledger, self.store)
        self.ledger.finish(
            {
                "weights": weights,
                "plan": None if plan is None else plan.digest,
                "train": files.digest_of_file(options) if options.exists() else None,
                "adapter": digest_of(folder.adapter) if folder.adapter.is_dir() else None,
            },
            files=bound_files(folder),
            looks=self.looks,
            since=self.since.plain if self.since != Lineage() else None,
        )
        # The charge, not the run: what went on from a copy, at a price of its own, ends by itself.
        self.store.settle(
            self.ledger.charge,
            steps=self.ledger.attempts,
            weights=weights,
            lineage=self.lineage.plain,
        )

    def close(self) -> None:
        """Let go of the folder; twice does no harm."""
        if self.lock is not None:
            self.ledger.close()
            os.close(self.lock)
            self.lock = None


def open_run(
    out: Path,
    store: UserStore,
    plan: Plan | None,
    *,
    base: Lineage,
    identity: Mapping[str, str],
    facts: Mapping[str, Any],
    train: Mapping[str, Any] | None = None,
    loop: Mapping[str, Any] | None = None,
    unsafe_seeds: bool = False,
    resume: bool = False,
    charge_again: bool = False,
    slot: str | None = None,
    scores: Path | None = None,
    exact_log: bool = True,
) -> OpenRun:
    """Begin a run in a new folder, or continue one.

    Args:
        out: the folder.
        store: whose people are charged.
        plan: None for a run without privacy.
        base: what the model that training begins from descends from.
        identity: digests of what must be the same when the run continues; kept operator-only.
        facts: for the ledger's first line; only public constants.
        train: options of ``userdp train`` for train.toml, if that was how it began.
        loop: plain values for loop.json, if it began in a loop of somebody's own.
        unsafe_seeds: sampling or noise has a known seed, so that the run may claim nothing.
        resume: continue an interrupted run.
        charge_again: go on in a folder that is not the one opened last, and charge the whole plan
            once more.
        slot: of a private selection, which pays for this run.
        scores: the file by which examples are selected.
        exact_log: whether it keeps exact numbers for its operator.

    Raises:
        FailureError: another process holds the folder, or a copy of it; or the disk refused.
        UseError: the folder is not a new one (or, to resume, not an interrupted run's, or a copy
            of one); the store is damaged; the store, the plan, the model or the configuration is
            not what the run began with.
    """
    folder = RunFolder(out)
    expected = {
        **identity,
        "store": store.meta.content_sha256,
        "plan": plan.digest if plan else "none",
        **({"slot that pays": slot} if slot else {}),
    }
    if resume and not out.is_dir():
        raise UseError(f"there is no run at {out} to resume", hint="leave out --resume")
    require_intact(store)  # before the folder is made and anything is charged
    made = not out.exists()
    if not made and not out.is_dir():
        raise UseError(f"{out} is a file, and a run needs a folder")
    lock = _hold(folder)
    try:
        begun = folder.begun
        kept: dict[str, Any] = {}
        if resume:
            kept = _check_resume(folder, expected, store)
        else:
            _refuse_used(folder, begun=begun)
            kept = {"run_id": new_id(), "nonces": [], "charge": None}
        files.sweep(out)
        remember(store.path, Place.RUN, out)
        if slot is not None and (plan is None or unsafe_seeds):
            raise UseError("a trial of a private selection needs a plan and secret seeds")
        if not begun:
            if plan is not None:
                plan.save(folder.plan)
            if train is not None:
                files.write_file(folder.train, train_toml(train).encode())
            if loop is not None:
                files.write_json(folder.loop, loop, mode=files.OPERATOR_FILE)
        ledger = _Opening(
            folder=folder,
            charges=StoreLedger(store.path),
            store=store,
            run_id=kept["run_id"],
            written=kept["nonces"],
            begun_charge=kept["charge"],
            expected=expected,
            plan=plan,
            priced=None if unsafe_seeds else plan,
            constants=constants_digest(plan, train, store, scores=scores),
            slot=slot,
            logged=exact_log,
            steered=_is_steered(plan, train),
        ).open(
            base,
            {
                **facts,
                "userdp": __version__,
                "store": store.meta.store_id,
                **({"unsafe_seeds": True} if unsafe_seeds else {}),
            },
            again=charge_again,
        )
        return OpenRun(
            run_id=kept["run_id"],
            folder=folder,
            ledger=ledger,
            store=StoreLedger(store.path),
            lock=lock,
            steered=_is_steered(plan, train),
        )
    except BaseException:
        os.close(lock)
        if made and not folder.resume.exists():
            _remove_new(folder)
        raise


def _is_steered(plan: Plan | None, train: Mapping[str, Any] | None) -> bool:
    """Whether a loop of somebody's own takes the steps: no options say how it learns."""
    return plan is not None and train is None


def constants_digest(
    plan: Plan | None,
    train: Mapping[str, Any] | None,
    store: UserStore,
    *,
    scores: Path | None = None,
) -> str:
    """What `StoreLedger.declare` records beforehand of a run, and what a slot is for.

    Its plan and options (but for where it computes, which decides nothing of what is learned); and
    the text, the base model and the scores themselves, since whoever exchanges one of them after a
    look has chosen it by the look.
    """
    name = str((train or {}).get("model", ""))
    base = Path(resolve(name)) if name else None
    files_there = base is not None and any(base.glob("*.safetensors"))
    return digest(
        {
            "plan": encode(plan),
            "train": {name: value for name, value in (train or {}).items() if name != "device"},
            "text": store.meta.content_sha256,
            "base": digest_of(base) if base is not None and files_there else "",
            "scores": None if scores is None else digest_of_scores(scores),
        }
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Opening:
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
        counter = Counter(self.charges.place.runs / charge, begun=opened is not None)
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
                _note_copy(ledger, self.charges)
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


def _note_copy(ledger: RunLedger, store: StoreLedger) -> None:
    """Have a run's ledger say what was found of its store's ledger since the run began."""
    if store.history().copied:
        own = run_lineage(ledger.path, read_entries(ledger.path))
        if COPIED not in own.conditions:
            ledger.note_copy()


def _hold(folder: RunFolder) -> int:
    """The lock of a run folder, held until its descriptor is closed (a kill closes it too)."""
    try:
        folder.path.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder.lock, os.O_RDWR | os.O_CREAT, files.OPERATOR_FILE)
    except OSError as error:
        raise FailureError(f"cannot write to {folder.path}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise FailureError(
            f"the run folder {folder.path} is in use by another process: two trainers in one "
            "folder would spend steps that only one of them charges",
            hint="wait for it, or choose another --out",
        ) from error
    return descriptor


def _refuse_used(folder: RunFolder, *, begun: bool) -> None:
    if begun:
        raise UseError(
            f"there is a run at {folder.path} already",
            hint="go on with it with --resume, or choose another --out",
        )
    # What a beginning that was killed may have left, and nothing else.
    ours = (folder.lock, folder.plan, folder.train, folder.loop)
    if any(
        path not in ours and not path.name.startswith(files.TEMPORARY)
        for path in folder.path.iterdir()
    ):
        raise UseError(
            f"{folder.path} is not empty and holds no run: nothing of it is overwritten",
            hint="choose another --out",
        )


def _check_resume(
    folder: RunFolder, expected: Mapping[str, str], store: UserStore
) -> dict[str, Any]:
    if not folder.resume.exists():
        raise UseError(f"there is no interrupted run at {folder.path}")
    kept = files.read_json(folder.resume, what="an interrupted run")
    if folder.finished:
        raise UseError(
            f"the run at {folder.path} is finished: its steps are spent",
            hint="train again in another --out, with a plan and a budget of its own",
        )
    for name, value in expected.items():
        if name == "store" and _only_erased_since(kept, store):
            continue
        if kept["digests"].get(name) != value:
            raise UseError(
                f"the {name} is not the one that the run at {folder.path} began with: its ledger "
                "would describe another run than the one that continues",
                hint=f"resume with the {name} it began with, or begin a new run",
            )
    return kept


def _only_erased_since(kept: Mapping[str, Any], store: UserStore) -> bool:
    """Whether the store is what an interrupted run began with, but for people who were erased.

    For everybody who is still in it, the steps to come are those of the plan. An erasure that the
    ledger does not hold is none: the store was changed by something else.
    """
    before, now = str(kept.get("state", "")), store.meta.state.id
    history = StoreLedger(store.path).history()
    return before != now and history.only_erased_since(before, now)


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


def _remove_new(folder: RunFolder) -> None:
    """Remove a folder that was made for a run which then could not begin."""
    files.sweep(folder.path)
    for path in (folder.plan, folder.train, folder.loop, folder.lock):
        path.unlink(missing_ok=True)
    if not any(folder.path.iterdir()):
        folder.path.rmdir()
