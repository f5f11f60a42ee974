"""A run's folder: what lies in it, who may read it, who holds it, and whether it may go on.

::

    RUN/
      ledger.jsonl     shareable: a line per attempted step
      plan.json        shareable: the plan; none of a run without privacy
      train.toml       shareable: all else that is needed to train again, as options of userdp train
      config.json      shareable: public facts about the run and its store
      model/           shareable: the released weights (safetensors), config, tokenizer
      operator.jsonl   0600: losses, norms, counts, times
      resume.json      0600: digests of what must not change; the store's is an exact function of
                       everybody's text, so that whoever holds it could test a guess
      checkpoints/     0700
      tensorboard/     0700, if TensorBoard is installed
      .lock            held by the process that trains
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from userdp import files
from userdp.data.store import UserStore
from userdp.errors import FailureError, UseError
from userdp.ledger import RunLedger, StoreLedger
from userdp.ledger.journal import read_entries
from userdp.ledger.run import is_begun
from userdp.plan import Plan
from userdp.version import __version__


class RunFolder:
    """The places in a run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ledger = path / "ledger.jsonl"
        self.plan = path / "plan.json"
        self.train = path / "train.toml"
        self.config = path / "config.json"
        self.model = path / "model"
        self.adapter = path / "adapter"
        self.operator = path / "operator.jsonl"
        self.resume = path / "resume.json"
        self.checkpoints = path / "checkpoints"
        self.tensorboard = path / "tensorboard"
        self.lock = path / ".lock"

    def read_config(self) -> dict[str, Any]:
        """The public constants; `UseError` if there is no run here."""
        return _read_json(self.config, "run")

    def read_train(self) -> dict[str, Any]:
        """The options of ``userdp train`` that the run began with; none of `make_private`.

        Raises:
            UseError: the file is damaged.
        """
        try:
            options = tomllib.loads(self.train.read_text(encoding="utf-8"))["train"]
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError) as error:
            raise UseError(f"{self.train} is damaged: {error}") from error
        return dict(options)

    def log(self, values: dict[str, Any]) -> None:
        """Append a line to operator.jsonl."""
        files.append_line(self.operator, values)


class OpenRun:
    """A run folder that this process holds, with its ledger, until `close`.

    Guarantee: while it is open nobody else trains in this folder; the store has been charged with
    the whole plan before this exists.
    """

    def __init__(
        self,
        folder: RunFolder,
        run_id: str,
        ledger: RunLedger,
        store: StoreLedger | None,
        lock: int,
    ) -> None:
        self.folder = folder
        self.run_id = run_id
        self.ledger = ledger
        self._store = store  # None where a selection pays
        self._lock: int | None = lock

    def finish(self) -> None:
        """Note the end in the ledger and settle with the store."""
        self.ledger.finish()
        if self._store is not None:
            self._store.settle(self.run_id, steps=self.ledger.attempts)

    @property
    def closed(self) -> bool:
        """Whether the folder was let go."""
        return self._lock is None

    def close(self) -> None:
        """Let go of the folder; twice does no harm."""
        if self._lock is not None:
            self.ledger.close()
            os.close(self._lock)
            self._lock = None


def open_run(
    out: Path,
    store: UserStore,
    plan: Plan | None,
    *,
    identity: Mapping[str, str],
    public: Mapping[str, Any],
    train: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any] | None = None,
    resume: bool = False,
    trial_of: str | None = None,
) -> OpenRun:
    """Begin a run in a new folder, or go on with one.

    Args:
        out: the folder.
        store: whose people are charged.
        plan: None for a run without privacy.
        identity: digests of what must be the same when the run goes on; kept operator-only.
        public: for config.json; public constants alone.
        train: options of ``userdp train`` for train.toml, if that was how it began.
        facts: public constants for the ledger's first line.
        resume: go on with an interrupted run.
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
    if made:
        _make_folder(out)
    elif not out.is_dir():
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
            if plan is None or (facts or {}).get("unsafe_seeds"):
                raise UseError("a trial of a private selection needs a plan and secret seeds")
            charges.require_selection(trial_of, plan)
        if not begun:
            files.write_json(
                folder.config,
                {"run_id": run_id, "userdp": __version__, "store": store.meta.store_id, **public},
            )
            if plan is not None:
                plan.save(folder.plan)
            if train is not None:
                files.write_file(folder.train, _toml("train", train).encode())
            files.write_json(
                folder.resume,
                {"run_id": run_id, "store_path": str(store.path.resolve()), "digests": expected},
                mode=files.OPERATOR_FILE,
            )
        # From here on every piece is idempotent: a kill between two of them is resumed.
        if trial_of is None and all(charge.run_id != run_id for charge in charges.charges()):
            # A known seed voids the claim, so that such a run counts as one without privacy.
            charges.reserve(run_id, None if (facts or {}).get("unsafe_seeds") else plan)
        if is_begun(folder.ledger):
            ledger = RunLedger.resume(folder.ledger)
        else:
            ledger = RunLedger.create(
                folder.ledger,
                plan=plan,
                run_id=run_id,
                facts={"userdp": __version__, "store": store.meta.store_id, **(facts or {})},
                trial_of=trial_of,
            )
        return OpenRun(folder, run_id, ledger, None if trial_of else charges, lock)
    except BaseException:
        os.close(lock)
        if made and not folder.resume.exists():
            _remove_new(folder)
        raise


def is_finished(folder: RunFolder) -> bool:
    """Whether the run's ledger notes its end."""
    if not folder.ledger.exists():
        return False
    entries = read_entries(folder.ledger)
    return bool(entries) and entries[-1].get("kind") == "finish"


def _make_folder(out: Path) -> None:
    if not out.parent.exists():
        try:
            out.parent.mkdir(parents=True)
        except OSError as error:
            raise FailureError(f"cannot make the folder {out.parent}: {error.strerror}") from error
    try:
        out.mkdir()
    except FileExistsError:
        return
    except OSError as error:
        raise FailureError(f"cannot make the folder {out}: {error.strerror}") from error


def _hold(folder: RunFolder) -> int:
    """The lock of a run folder, held until its descriptor is closed (a kill closes it too)."""
    try:
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
    others = [
        path.name
        for path in folder.path.iterdir()
        if path != folder.lock
        and path not in (folder.config, folder.plan, folder.train)
        and not path.name.startswith(files.TEMPORARY)
    ]
    if others:
        raise UseError(
            f"{folder.path} is not empty and holds no run: nothing of it is overwritten",
            hint="choose another --out",
        )


def _check_resume(folder: RunFolder, expected: Mapping[str, str]) -> str:
    kept = _read_json(folder.resume, "interrupted run")
    if is_finished(folder):
        raise UseError(
            f"the run at {folder.path} is finished: its steps are spent",
            hint="train again in another --out, with a plan and a budget of its own",
        )
    for name, digest in expected.items():
        if kept["digests"].get(name) != digest:
            raise UseError(
                f"the {name} is not the one that the run at {folder.path} began with: its ledger "
                "would tell of something else than what runs",
                hint=f"resume with the {name} it began with, or begin a new run",
            )
    run_id: str = kept["run_id"]
    return run_id


def _remove_new(folder: RunFolder) -> None:
    """Take away a folder that was made for a run which then could not begin."""
    files.sweep(folder.path)
    for path in (folder.config, folder.plan, folder.train):
        path.unlink(missing_ok=True)
    folder.lock.unlink(missing_ok=True)
    if not any(folder.path.iterdir()):
        folder.path.rmdir()


def _toml(table: str, values: Mapping[str, Any]) -> str:
    """One TOML table of plain values, those that are None left out.

    JSON's way to write a string, a number, a truth value or a list of strings is TOML's too.
    """
    lines = [
        f"{name} = {json.dumps(value, ensure_ascii=False)}"
        for name, value in values.items()
        if value is not None
    ]
    return "\n".join([f"[{table}]", *lines, ""])


def _read_json(path: Path, what: str) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UseError(f"there is no {what} at {path.parent}: it holds no {path.name}") from None
    except ValueError as error:
        raise UseError(f"{path} is damaged: {error}") from error
    if not isinstance(values, dict):
        raise UseError(f"{path} is damaged: it holds no JSON object")
    return values
