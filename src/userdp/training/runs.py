"""Whether a run may begin or resume, and who holds its folder; see `userdp.ledger.folder`."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from userdp import files
from userdp.claims.lineage import Lineage
from userdp.data.blocks import require_intact
from userdp.data.places import Place, remember
from userdp.data.store import UserStore
from userdp.errors import FailureError, UseError
from userdp.ledger import RunFolder, StoreLedger
from userdp.ledger.folder import train_toml
from userdp.ledger.store_journal import new_id
from userdp.plans import Plan
from userdp.training.constants import constants_digest
from userdp.training.opened import OpenRun, settle_finished
from userdp.training.opening import Opening
from userdp.version import __version__


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainerNotes:
    """What a trainer of this package says of the run that it opens; a loop of somebody's own, none.

    Args:
        identity: digests of anything else that a resumed run must share.
        facts: public constants to note in the ledger's first line.
        train: options of ``userdp train`` to note in train.toml; for its loop alone, of which they
            are all the constants. Of any other loop the claim would leave out what it followed.
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
    train: Mapping[str, Any] | None = None
    base: Lineage | None = None
    slot: str | None = None
    log_only: bool = False


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
        ledger = Opening(
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
    kept = folder.read_resume()
    if folder.finished:
        # A kill may have come between the last line of the run and the store's.
        settle_finished(folder, StoreLedger(store.path))
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


def _remove_new(folder: RunFolder) -> None:
    """Remove a folder that was made for a run which then could not begin."""
    files.sweep(folder.path)
    for path in (folder.plan, folder.train, folder.loop, folder.lock):
        path.unlink(missing_ok=True)
    if not any(folder.path.iterdir()):
        folder.path.rmdir()
