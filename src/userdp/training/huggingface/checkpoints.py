"""The trainer's ``checkpoint-N`` folders: sealed when whole, and asked whose they are when read.

The trainer writes a checkpoint file by file. A process that is killed meanwhile leaves half of one,
so each whole one gets a seal, written last and on the disk: which run it is of, how many attempts
the run's ledger held, and the digest of each file, since other scripts write to the same names. A
folder without a seal counts for nothing.

What a checkpoint holds (weights, optimizer, schedule) is computed from noisy gradients, and so it
is covered by the run's claim. No secret is in it: a resumed run draws new cohorts, noise and masks.
It is operator-only (mode 0700) since nobody else needs it, and since a choice among checkpoints is
a choice that should not follow private results.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from userdp import files
from userdp.errors import FailureError

SEAL = "userdp-position.json"
_NAME = re.compile(r"checkpoint-(\d+)")


def seal(folder: Path, *, run_id: str, attempts: int) -> None:
    """Note whose checkpoint ``folder`` is; all that is in it is on the disk when this returns."""
    for path in folder.iterdir():
        if path.is_file():
            files.sync(path)
    files.sync(folder)
    position = {"run_id": run_id, "attempts": attempts, "files": _digests(folder)}
    files.write_json(folder / SEAL, position, mode=files.OPERATOR_FILE)
    files.sync(folder.parent)


def last_sealed(output: Path) -> Path | None:
    """The whole checkpoint of the most attempts; halves that a killed process left are removed."""
    sealed: Path | None = None
    for path in _all(output):
        if (path / SEAL).exists():
            sealed = path
        else:
            shutil.rmtree(path, ignore_errors=True)
    return sealed


def require_own(folder: Path, *, run_id: str, attempts: int) -> None:
    """Refuse a checkpoint that this run has not written.

    Args:
        folder: of the checkpoint.
        run_id: of the run.
        attempts: that the run's ledger holds.

    Raises:
        FailureError: it is half, another run's, or of a step that this run has not taken.
    """
    position = None
    if (folder / SEAL).exists():
        position = files.read_json(folder / SEAL, what="a checkpoint's position")
    if position is None:
        raise FailureError(
            f"the checkpoint {folder} is not whole, or not of a private run",
            hint="resume with resume_from_checkpoint=True, which takes the last whole one",
        )
    if position.get("files") != _digests(folder):
        raise FailureError(
            f"the checkpoint {folder} is not what this run wrote: a file of it was changed, added "
            "or removed, so that nobody knows what its weights have learned",
            hint="put this run's own checkpoint back, or remove this one to go on from an older",
        )
    if position.get("run_id") != run_id or not position.get("attempts", attempts + 1) <= attempts:
        raise FailureError(
            f"the checkpoint {folder} is not of this run: going on from it would release what "
            "another run has learned, at the price of this one",
            hint="put this run's own checkpoints back",
        )


def rotate(output: Path, *, limit: int | None, keep: str | None) -> None:
    """Remove the oldest checkpoints beyond ``limit``, but never ``keep``, nor the last one."""
    if not limit or limit < 0:
        return
    best = None if keep is None else Path(keep).name
    paths = _all(output)
    spare = [path for path in paths[:-1] if path.name != best]
    for path in spare[: max(0, len(paths) - limit)]:
        (path / SEAL).unlink(missing_ok=True)  # first: half a checkpoint is none
        shutil.rmtree(path, ignore_errors=True)


def _digests(folder: Path) -> dict[str, str]:
    """SHA-256 of all files of a checkpoint but its seal, by name."""
    return {
        path.name: files.digest_of_file(path)
        for path in sorted(folder.iterdir())
        if path.is_file() and path.name != SEAL
    }


def _all(output: Path) -> list[Path]:
    found = {path: _NAME.fullmatch(path.name) for path in output.glob("checkpoint-*")}
    numbers = {path: int(match[1]) for path, match in found.items() if match and path.is_dir()}
    return sorted(numbers, key=lambda path: numbers[path])
