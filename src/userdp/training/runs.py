"""Who holds a run's folder, and whether a run may begin or resume; see `userdp.ledger.folder`."""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from userdp import files
from userdp.data.store import UserStore
from userdp.errors import FailureError, UseError
from userdp.ledger import RunFolder, RunLedger, StoreLedger
from userdp.ledger.folder import train_toml
from userdp.ledger.run import is_begun
from userdp.plan import Plan
from userdp.version import __version__


@dataclass(kw_only=True, slots=True)
class OpenRun:
    """A run folder that this process holds, with its ledger, until `close`.

    Guarantee: while it is open nobody else trains in this folder; the store has been charged with
    the whole plan before this exists.

    Args:
        run_id: random.
        ledger: the run's.
        store: the store's ledger; None for a trial, where the private selection was charged.
        lock: descriptor of the lock file; None once it is closed.
    """

    run_id: str
    ledger: RunLedger
    store: StoreLedger | None
    lock: int | None

    def finish(self) -> None:
        """Note the end in the ledger and settle with the store."""
        self.ledger.finish()
        if self.store is not None:
            self.store.settle(self.run_id, steps=self.ledger.attempts)

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
    identity: Mapping[str, str],
    facts: Mapping[str, Any],
    train: Mapping[str, Any] | None = None,
    unsafe_seeds: bool = False,
    resume: bool = False,
    trial_of: str | None = None,
) -> OpenRun:
    """Begin a run in a new folder, or continue one.

    Args:
        out: the folder.
        store: whose people are charged.
        plan: None for a run without privacy.
        identity: digests of what must be the same when the run continues; kept operator-only.
        facts: for the ledger's first line; only public constants.
        train: options of ``userdp train`` for train.toml, if that was how it began.
        unsafe_seeds: sampling or noise has a known seed, so that the run may claim nothing.
        resume: continue an interrupted run.
        trial_of: the private selection in the store's ledger that pays for this run.

    Raises:
        FailureError: another process holds the folder, or the disk refused.
        UseError: the folder is not a new one (or, to resume, not an interrupted run's); the
            store, the plan, the model or the configuration is not what the run began with.
    """
    folder = RunFolder(out)
    expected = {
        **identity,
        "store": store.meta.content_sha256,
        "plan": plan.digest if plan else "none",
        **({"selection that pays": trial_of} if trial_of else {}),
    }
    if resume and not out.is_dir():
        raise UseError(f"there is no run at {out} to resume", hint="leave out --resume")
    made = not out.exists()
    if not made and not out.is_dir():
        raise UseError(f"{out} is a file, and a run needs a folder")
    lock = _hold(folder)
    try:
        begun = folder.resume.exists() or folder.ledger.exists()
        if resume:
            run_id = _check_resume(folder, expected)
        else:
            _refuse_used(folder, begun=begun)
            run_id = secrets.token_hex(8)
        files.sweep(out)
        charges = StoreLedger(store.path)
        if trial_of is not None:
            if plan is None or unsafe_seeds:
                raise UseError("a trial of a private selection needs a plan and secret seeds")
            charges.require_selection(trial_of, plan)
        if not begun:
            if plan is not None:
                plan.save(folder.plan)
            if train is not None:
                files.write_file(folder.train, train_toml(train).encode())
            # The last file of a beginning, so that a run that can be resumed has all of them.
            files.write_json(
                folder.resume,
                {"run_id": run_id, "store_path": str(store.path.resolve()), "digests": expected},
                mode=files.OPERATOR_FILE,
            )
        # From here on a kill between two lines does no harm: resuming does again only what is not
        # done yet. The store is charged before the run's ledger exists, so that no step can be
        # taken whose plan the store does not know.
        if trial_of is None and all(charge.run_id != run_id for charge in charges.charges()):
            # Whoever knows the seed can undo the noise, so that such a run counts as one without
            # privacy.
            charges.reserve(run_id, None if unsafe_seeds else plan)
        if is_begun(folder.ledger):
            ledger = RunLedger(folder.ledger)
        else:
            ledger = RunLedger.create(
                folder.ledger,
                plan=plan,
                run_id=run_id,
                facts={
                    **facts,
                    "userdp": __version__,
                    "store": store.meta.store_id,
                    **({"unsafe_seeds": True} if unsafe_seeds else {}),
                },
                trial_of=trial_of,
            )
        return OpenRun(run_id=run_id, ledger=ledger, store=None if trial_of else charges, lock=lock)
    except BaseException:
        os.close(lock)
        if made and not folder.resume.exists():
            _remove_new(folder)
        raise


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
    ours = (folder.lock, folder.plan, folder.train)
    if any(
        path not in ours and not path.name.startswith(files.TEMPORARY)
        for path in folder.path.iterdir()
    ):
        raise UseError(
            f"{folder.path} is not empty and holds no run: nothing of it is overwritten",
            hint="choose another --out",
        )


def _check_resume(folder: RunFolder, expected: Mapping[str, str]) -> str:
    if not folder.resume.exists():
        raise UseError(f"there is no interrupted run at {folder.path}")
    kept = files.read_json(folder.resume, what="an interrupted run")
    if folder.finished:
        raise UseError(
            f"the run at {folder.path} is finished: its steps are spent",
            hint="train again in another --out, with a plan and a budget of its own",
        )
    for name, digest in expected.items():
        if kept["digests"].get(name) != digest:
            raise UseError(
                f"the {name} is not the one that the run at {folder.path} began with: its ledger "
                "would describe another run than the one that continues",
                hint=f"resume with the {name} it began with, or begin a new run",
            )
    run_id: str = kept["run_id"]
    return run_id


def _remove_new(folder: RunFolder) -> None:
    """Remove a folder that was made for a run which then could not begin."""
    files.sweep(folder.path)
    for path in (folder.plan, folder.train, folder.lock):
        path.unlink(missing_ok=True)
    if not any(folder.path.iterdir()):
        folder.path.rmdir()
