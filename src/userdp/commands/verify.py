"""``userdp verify``: is a store, a run, a model or an export as written, and what is claimed?"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from userdp.claims import claim
from userdp.claims.verify import Checked, kind_of
from userdp.claims.verify import verify as check
from userdp.commands.progress import shown
from userdp.core.codec import plain
from userdp.core.errors import UseError
from userdp.core.stages import Progress
from userdp.data.store_meta import is_store
from userdp.data.user_store import verify_store
from userdp.ledger import StoreLedger


def verify(
    path: str | os.PathLike[str],
    *,
    quick: bool = False,
    key: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Check a store, a run, a model or an export, and its claim.

    Of a store: every byte of its files, and its privacy ledger. Of a run: its ledger, and the
    weights, plan and options against it. Of a model: its weights against what its folder says that
    they descend from. Of an export: every file against its statement and its ledger, and epsilon
    by two accountants; neither the data nor the run is needed. The exit status is 0 where all is
    well, and 1 where something differs; it is then named. Only a signature, checked with a key,
    finds somebody who wrote all of the files anew.

    Example::

        userdp verify run

    Args:
        path: the folder of a store, of a run, of a model, or an export.
        quick: of a store only: check the sizes of all files and a sample of their bytes, as is done
            before every charge.
        key: of an export, the public key (PEM) of who should have signed it.
        progress: receives the progress; by default a bar, or lines where stderr is no terminal.

    Returns:
        Which ``subject`` the folder is, whether it is ``ok``, the ``problems`` where it is not,
        and the recomputed ``claim``, if anything is claimed.

    Raises:
        UseError: the folder is none of these, or an argument is for another of them.
    """
    place, public = Path(path), None if key is None else Path(key)
    subject = "store" if is_store(place) or not place.exists() else kind_of(place)
    if public is not None and subject != "export":
        raise UseError(
            f"{place} is no export: nothing there could be signed",
            hint="name a folder that `userdp export RUN --out DIR --sign KEY` wrote",
        )
    if subject is None:
        raise UseError(
            f"{place} is no store, run, model or export: there is nothing to check it by",
            hint="name one of those; a federation's claim is that of `userdp account --ledger`",
        )
    found = _of_store(place, quick, progress) if subject == "store" else check(place, key=public)
    said = {**plain(found), "claim": found.claim, "ok": not found.problems}
    return {"subject": subject, "path": place, **said}


def _of_store(path: Path, quick: bool, progress: Progress | None) -> Checked:
    with shown(progress) as bar:
        problems, claimed = [*verify_store(path, quick=quick, progress=bar)], None
    try:
        history = StoreLedger(path).history()
        claimed = claim(history) if history.charges else None
    except UseError as error:  # for this command a broken chain is what it looks for
        problems.append(error.message)
    # No size and no count: those are exact facts about people's text, and a look at them a line.
    notes = ("Its files: as written.",)
    return Checked(problems=tuple(problems), claim=claimed, notes=notes)
